#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "arithmetic.glsl"
// The same product for devices whose lanes share fast memory: 256 invocations stage 16 * ROWS rows
// and 64 columns of 16 steps.
layout(local_size_x = 256) in;
layout(constant_id = 1) const int ROWS = 4;
layout(constant_id = 3) const int ACT = 0;
layout(constant_id = 4) const bool BIAS = false;
layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) readonly buffer Bias { vec4 bias[]; };
layout(set = 0, binding = 2) writeonly buffer Out { float result[]; };
layout(set = 0, binding = 6) uniform samplerBuffer weight;
layout(push_constant) uniform Push { int rows; int depth; int columns; int stored_quads; int x_offset; int x_stride; };
const int TILE = 16 * ROWS;
const int QUADS = 16;
const int STEPS = 16;

shared float x_tile[STEPS][TILE + 4];
shared vec4 w_tile[STEPS][QUADS];

void main() {
    int first_row = int(gl_WorkGroupID.y) * TILE;
    int first_quad = int(gl_WorkGroupID.x) * QUADS;
    int lane = int(gl_LocalInvocationIndex);
    int my_quad = lane % 16;
    int my_row = (lane / 16) * ROWS;
    vec4 sums[ROWS];
    [[unroll]] for (int row = 0; row < ROWS; ++row) {
        sums[row] = vec4(0.0);
    }
    for (int k = 0; k < depth; k += STEPS) {
        [[unroll]] for (int part = 0; part < ROWS; ++part) {
            int row = lane / 16 + 16 * part;
            int step = lane % 16;
            bool inside = first_row + row < rows && k + step < depth;
            x_tile[step][row] = inside ? x[x_offset + (first_row + row) * x_stride + k + step] : 0.0;
        }
        int quad = first_quad + lane % 16;
        int depth_here = k + lane / 16;
        bool stored = quad < stored_quads && depth_here < depth;
        w_tile[lane / 16][lane % 16] = stored ? texelFetch(weight, depth_here * stored_quads + quad) : vec4(0.0);
        barrier();
        [[unroll]] for (int step = 0; step < STEPS; ++step) {
            vec4 w = w_tile[step][my_quad];
            [[unroll]] for (int row = 0; row < ROWS; ++row) {
                sums[row] = fma(vec4(x_tile[step][my_row + row]), w, sums[row]);
            }
        }
        barrier();
    }
    int quad = first_quad + my_quad;
    if (quad >= stored_quads) {
        return;
    }
    [[unroll]] for (int row = 0; row < ROWS; ++row) {
        vec4 value = sums[row];
        if (BIAS) {
            value += bias[quad];
        }
        [[unroll]] for (int part = 0; part < 4; ++part) {
            int column = 4 * quad + part;
            int at = first_row + my_row + row;
            if (column < columns && at < rows) {
                result[at * columns + column] = activated(value[part], ACT);
            }
        }
    }
}
