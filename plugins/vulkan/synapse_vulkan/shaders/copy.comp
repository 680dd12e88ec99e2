#version 450
// Rows of a view into another view. With PICK_LAST the one row taken of each text is its last valid one.
layout(local_size_x = 64) in;
layout(constant_id = 0) const bool PICK_LAST = false;
layout(set = 0, binding = 0) readonly buffer In { float source[]; };
layout(set = 0, binding = 1) writeonly buffer Out { float result[]; };
layout(set = 0, binding = 2) readonly buffer Counts { int counts[]; };
layout(push_constant) uniform Push {
    int texts; int positions; int width;
    int in_offset; int in_text; int in_position;
    int out_offset; int out_text; int out_position;
};

void main() {
    int column = int(gl_GlobalInvocationID.x);
    int row = int(gl_WorkGroupID.y);
    if (column >= width) {
        return;
    }
    int text = row / positions;
    int position = row - text * positions;
    int taken = PICK_LAST ? max(counts[text] - 1, 0) : position;
    result[out_offset + text * out_text + position * out_position + column] =
        source[in_offset + text * in_text + taken * in_position + column];
}
