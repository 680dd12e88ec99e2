#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "arithmetic.glsl"
// result = act(x * w + bias): every invocation keeps ROWS by 4 * QUADS sums in registers, nothing is shared.
// w is [K, columns] and read four columns at a time; lanes run along columns. Each sum is taken over k in order, one
// fma a step, so that every variant of the product gives the same bits.
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const int ROWS = 4;
layout(constant_id = 2) const int QUADS = 1;
layout(constant_id = 3) const int ACT = 0;
layout(constant_id = 4) const bool BIAS = false;
layout(constant_id = 5) const bool ALIGNED = false;
layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) readonly buffer Bias { vec4 bias[]; };
layout(set = 0, binding = 2) writeonly buffer Out { float result[]; };
layout(set = 0, binding = 6) uniform samplerBuffer weight;
layout(set = 0, binding = 7) uniform samplerBuffer x_quads;
layout(push_constant) uniform Push { int rows; int depth; int columns; int stored_quads; int x_offset; int x_stride; };

vec4 inputs(int row, int k) {
    int from = x_offset + row * x_stride + k;
    if (ALIGNED) {
        return texelFetch(x_quads, from >> 2);
    }
    vec4 values = vec4(0.0);
    for (int lane = 0; lane < 4; ++lane) {
        if (k + lane < depth) {
            values[lane] = x[from + lane];
        }
    }
    return values;
}

void main() {
    int first_row = int(gl_WorkGroupID.y) * ROWS;
    int first_quad = (int(gl_WorkGroupID.x) * int(gl_WorkGroupSize.x) + int(gl_LocalInvocationID.x)) * QUADS;
    if (first_quad >= stored_quads) {
        return;
    }
    vec4 sums[ROWS * QUADS];
    [[unroll]] for (int place = 0; place < ROWS * QUADS; ++place) {
        sums[place] = vec4(0.0);
    }
    for (int k = 0; k < depth; k += 4) {
        vec4 w[4 * QUADS];
        [[unroll]] for (int step = 0; step < 4; ++step) {
            [[unroll]] for (int quad = 0; quad < QUADS; ++quad) {
                w[step * QUADS + quad] = texelFetch(weight, (k + step) * stored_quads + first_quad + quad);
            }
        }
        [[unroll]] for (int row = 0; row < ROWS; ++row) {
            vec4 values = inputs(min(first_row + row, rows - 1), k);
            [[unroll]] for (int step = 0; step < 4; ++step) {
                [[unroll]] for (int quad = 0; quad < QUADS; ++quad) {
                    sums[row * QUADS + quad] =
                        fma(vec4(values[step]), w[step * QUADS + quad], sums[row * QUADS + quad]);
                }
            }
        }
    }
    [[unroll]] for (int row = 0; row < ROWS; ++row) {
        [[unroll]] for (int quad = 0; quad < QUADS; ++quad) {
            vec4 value = sums[row * QUADS + quad];
            if (BIAS) {
                value += bias[first_quad + quad];
            }
            [[unroll]] for (int lane = 0; lane < 4; ++lane) {
                int column = 4 * (first_quad + quad) + lane;
                if (column < columns && first_row + row < rows) {
                    result[(first_row + row) * columns + column] = activated(value[lane], ACT);
                }
            }
        }
    }
}
