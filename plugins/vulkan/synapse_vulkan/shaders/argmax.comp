#version 450
// The lowest index of the largest of every row; the width where a row holds a NaN.
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) writeonly buffer Out { int picks[]; };
layout(push_constant) uniform Push { int rows; int width; int x_offset; int x_stride; };

void main() {
    int row = int(gl_GlobalInvocationID.x);
    if (row >= rows) {
        return;
    }
    int from = x_offset + row * x_stride;
    int best = 0;
    bool nothing = false;
    for (int column = 0; column < width; ++column) {
        float value = x[from + column];
        nothing = nothing || isnan(value);
        if (value > x[from + best]) {
            best = column;
        }
    }
    picks[row] = nothing ? width : best;
}
