#version 450
// a + b or a * b, either of them standing still along texts or positions where its stride is 0.
layout(local_size_x = 64) in;
layout(constant_id = 0) const bool MULTIPLY = false;
layout(set = 0, binding = 0) readonly buffer A { float left[]; };
layout(set = 0, binding = 1) readonly buffer B { float right[]; };
layout(set = 0, binding = 2) writeonly buffer Out { float result[]; };
layout(push_constant) uniform Push {
    int positions; int width;
    int a_offset; int a_text; int a_position;
    int b_offset; int b_text; int b_position;
};

void main() {
    int column = int(gl_GlobalInvocationID.x);
    int row = int(gl_WorkGroupID.y);
    if (column >= width) {
        return;
    }
    int text = row / positions;
    int position = row - text * positions;
    float a = left[a_offset + text * a_text + position * a_position + column];
    float b = right[b_offset + text * b_text + position * b_position + column];
    result[row * width + column] = MULTIPLY ? a * b : a + b;
}
