#version 450
#extension GL_GOOGLE_include_directive : require
#include "arithmetic.glsl"
// act(x), or act(x) * y where GATED: the gate of a feed-forward and what passes it.
layout(local_size_x = 64) in;
layout(constant_id = 0) const int ACT = 0;
layout(constant_id = 1) const bool GATED = false;
layout(set = 0, binding = 0) readonly buffer X { float gate[]; };
layout(set = 0, binding = 1) readonly buffer Y { float passed[]; };
layout(set = 0, binding = 2) writeonly buffer Out { float result[]; };
layout(push_constant) uniform Push { int width; int x_offset; int x_stride; int y_offset; int y_stride; };

void main() {
    int column = int(gl_GlobalInvocationID.x);
    int row = int(gl_WorkGroupID.y);
    if (column >= width) {
        return;
    }
    float value = activated(gate[x_offset + row * x_stride + column], ACT);
    if (GATED) {
        value *= passed[y_offset + row * y_stride + column];
    }
    result[row * width + column] = value;
}
