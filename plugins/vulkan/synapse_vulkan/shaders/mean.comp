#version 450
// The mean of the valid rows of every text, summed in blocks so that a long text loses nothing.
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) writeonly buffer Out { float result[]; };
layout(set = 0, binding = 2) readonly buffer Counts { int counts[]; };
layout(push_constant) uniform Push { int width; int x_offset; int x_text; int x_position; };
const int BLOCK = 64;

void main() {
    int column = int(gl_GlobalInvocationID.x);
    int text = int(gl_WorkGroupID.y);
    if (column >= width) {
        return;
    }
    int count = max(counts[text], 1);
    int from = x_offset + text * x_text + column;
    float sum = 0.0;
    for (int first = 0; first < count; first += BLOCK) {
        float part = 0.0;
        int last = min(first + BLOCK, count);
        for (int position = first; position < last; ++position) {
            part += x[from + position * x_position];
        }
        sum += part;
    }
    result[text * width + column] = sum / float(count);
}
