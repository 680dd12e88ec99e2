#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "arithmetic.glsl"
// Softmax attention, QUERIES queries an invocation. Keys come in tiles of TILE; the sums are rescaled once a tile when
// its largest score passes the largest before (online softmax), so no score is ever stored. Tiles that no query of the
// workgroup sees are not visited. Each key and value is read four numbers at a time and used for every query; where
// STAGED, the workgroup reads a tile once into shared memory.
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const int QUERIES = 1;
layout(constant_id = 2) const int TILE = 4;
layout(constant_id = 3) const int SIZE = 64;
layout(constant_id = 4) const bool ALIGNED = false;
layout(constant_id = 5) const bool STAGED = false;
layout(set = 0, binding = 0) readonly buffer Q { float queries[]; };
layout(set = 0, binding = 1) readonly buffer K { float keys[]; };
layout(set = 0, binding = 2) readonly buffer V { float values[]; };
layout(set = 0, binding = 3) writeonly buffer Out { float result[]; };
layout(set = 0, binding = 4) readonly buffer Counts { int counts[]; };
layout(set = 0, binding = 6) uniform samplerBuffer key_quads;
layout(set = 0, binding = 7) uniform samplerBuffer value_quads;
layout(push_constant) uniform Push {
    int length; int total; int heads; int sharing; int start;
    int q_offset; int q_text; int q_position;
    int k_offset; int k_text; int k_position;
    int v_offset; int v_text; int v_position;
    int causal; int window;
    float scale;
};
const int QUADS = (SIZE + 3) / 4;
// Stands for "not seen"; finite, so that a tile of nothing makes no NaN.
const float HIDDEN = -1e30;
// Bits of 1e29: a score that is larger either way, infinite or no number could not be told from HIDDEN. Their sizes are
// summed, and the sum compared as a whole number, which no driver takes for granted.
const uint LARGEST_SCORES = 0x6fa18f08u;
const uint NO_NUMBER = 0x7fc00000u;

vec4 key_quad(int from, int quad) {
    if (ALIGNED) {
        return texelFetch(key_quads, (from >> 2) + quad);
    }
    vec4 found = vec4(0.0);
    for (int lane = 0; lane < 4; ++lane) {
        if (4 * quad + lane < SIZE) {
            found[lane] = keys[from + 4 * quad + lane];
        }
    }
    return found;
}

vec4 value_quad(int from, int quad) {
    if (ALIGNED) {
        return texelFetch(value_quads, (from >> 2) + quad);
    }
    vec4 found = vec4(0.0);
    for (int lane = 0; lane < 4; ++lane) {
        if (4 * quad + lane < SIZE) {
            found[lane] = values[from + 4 * quad + lane];
        }
    }
    return found;
}

shared vec4 staged[STAGED ? 2 * TILE * QUADS : 1];

void main() {
    int text = int(gl_WorkGroupID.z) / heads;
    int head = int(gl_WorkGroupID.z) - text * heads;
    int lanes = int(gl_WorkGroupSize.x);
    int first_query = int(gl_WorkGroupID.y) * lanes * QUERIES;
    int my_query = first_query + int(gl_LocalInvocationID.x);
    int last_query = min(first_query + lanes * QUERIES, length) - 1;
    int low = 0;
    int high = min(start + counts[text], total);
    if (causal != 0) {
        high = min(high, start + last_query + 1);
    }
    if (window >= 0) {
        low = max(0, start + first_query - window);
        high = min(high, start + last_query + window + 1);
    }
    int shared_head = (head / sharing) * SIZE;
    int k_from = k_offset + text * k_text + shared_head;
    int v_from = v_offset + text * v_text + shared_head;
    vec4 mine[QUERIES * QUADS];
    vec4 sums[QUERIES * QUADS];
    float largest[QUERIES];
    float weights[QUERIES];
    float sizes[QUERIES];
    [[unroll]] for (int query = 0; query < QUERIES; ++query) {
        int q_from = q_offset + text * q_text + min(my_query + query * lanes, length - 1) * q_position + head * SIZE;
        largest[query] = HIDDEN;
        weights[query] = 0.0;
        sizes[query] = 0.0;
        [[unroll]] for (int quad = 0; quad < QUADS; ++quad) {
            sums[query * QUADS + quad] = vec4(0.0);
            mine[query * QUADS + quad] = vec4(0.0);
            [[unroll]] for (int lane = 0; lane < 4; ++lane) {
                if (4 * quad + lane < SIZE) {
                    mine[query * QUADS + quad][lane] = queries[q_from + 4 * quad + lane];
                }
            }
        }
    }
    for (int tile = low; tile < high; tile += TILE) {
        if (STAGED) {
            barrier();
            for (int at = int(gl_LocalInvocationID.x); at < TILE * QUADS; at += lanes) {
                int key = min(tile + at / QUADS, high - 1);
                staged[at] = key_quad(k_from + key * k_position, at % QUADS);
                staged[TILE * QUADS + at] = value_quad(v_from + key * v_position, at % QUADS);
            }
            barrier();
        }
        float scores[QUERIES * TILE];
        [[unroll]] for (int key = 0; key < TILE; ++key) {
            int there = tile + key;
            int from = k_from + min(there, high - 1) * k_position;
            float dots[QUERIES];
            [[unroll]] for (int query = 0; query < QUERIES; ++query) {
                dots[query] = 0.0;
            }
            [[unroll]] for (int quad = 0; quad < QUADS; ++quad) {
                vec4 k = STAGED ? staged[key * QUADS + quad] : key_quad(from, quad);
                [[unroll]] for (int query = 0; query < QUERIES; ++query) {
                    vec4 q = mine[query * QUADS + quad];
                    dots[query] = fma(q.w, k.w, fma(q.z, k.z, fma(q.y, k.y, fma(q.x, k.x, dots[query]))));
                }
            }
            [[unroll]] for (int query = 0; query < QUERIES; ++query) {
                int place = start + my_query + query * lanes;
                bool seen = there < high && (causal == 0 || there <= place) && (window < 0 || abs(there - place) <= window);
                float score = dots[query] * scale;
                sizes[query] += seen ? abs(score) : 0.0;
                scores[query * TILE + key] = seen ? score : HIDDEN;
            }
        }
        [[unroll]] for (int query = 0; query < QUERIES; ++query) {
            float peak = largest[query];
            [[unroll]] for (int key = 0; key < TILE; ++key) {
                peak = max(peak, scores[query * TILE + key]);
            }
            float kept = exponential(largest[query] - peak);
            largest[query] = peak;
            weights[query] *= kept;
            [[unroll]] for (int quad = 0; quad < QUADS; ++quad) {
                sums[query * QUADS + quad] *= kept;
            }
            [[unroll]] for (int key = 0; key < TILE; ++key) {
                float score = scores[query * TILE + key];
                float weight = score == HIDDEN ? 0.0 : exponential(score - peak);
                scores[query * TILE + key] = weight;
                weights[query] += weight;
            }
        }
        [[unroll]] for (int key = 0; key < TILE; ++key) {
            int from = v_from + min(tile + key, high - 1) * v_position;
            [[unroll]] for (int quad = 0; quad < QUADS; ++quad) {
                vec4 v = STAGED ? staged[(TILE + key) * QUADS + quad] : value_quad(from, quad);
                [[unroll]] for (int query = 0; query < QUERIES; ++query) {
                    sums[query * QUADS + quad] =
                        fma(vec4(scores[query * TILE + key]), v, sums[query * QUADS + quad]);
                }
            }
        }
    }
    [[unroll]] for (int query = 0; query < QUERIES; ++query) {
        int at = my_query + query * lanes;
        float share = weights[query] > 0.0 ? 1.0 / weights[query] : 0.0;
        bool lost = (floatBitsToUint(sizes[query]) & 0x7fffffffu) > LARGEST_SCORES;
        int to = ((text * length + at) * heads + head) * SIZE;
        [[unroll]] for (int quad = 0; quad < QUADS; ++quad) {
            [[unroll]] for (int lane = 0; lane < 4; ++lane) {
                if (4 * quad + lane < SIZE && at < length) {
                    result[to + 4 * quad + lane] =
                        lost ? uintBitsToFloat(NO_NUMBER) : sums[query * QUADS + quad][lane] * share;
                }
            }
        }
    }
}
