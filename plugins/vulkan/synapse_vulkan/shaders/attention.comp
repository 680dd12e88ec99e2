#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "arithmetic.glsl"
// Softmax attention, one query an invocation. Keys come in tiles of 16; the sums are rescaled once a tile when its
// largest score passes the largest before (online softmax), so no score is ever stored. Tiles that no query of the
// workgroup sees are not visited.
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const int SIZE = 64;
layout(constant_id = 2) const bool CAUSAL = false;
layout(constant_id = 3) const int WINDOW = -1;
layout(constant_id = 4) const bool ALIGNED = false;
layout(set = 0, binding = 0) readonly buffer Q { float queries[]; };
layout(set = 0, binding = 1) readonly buffer K { float keys[]; };
layout(set = 0, binding = 1) readonly buffer KQuads { vec4 key_quads[]; };
layout(set = 0, binding = 2) readonly buffer V { float values[]; };
layout(set = 0, binding = 2) readonly buffer VQuads { vec4 value_quads[]; };
layout(set = 0, binding = 3) writeonly buffer Out { float result[]; };
layout(set = 0, binding = 4) readonly buffer Counts { int counts[]; };
layout(push_constant) uniform Push {
    int length; int total; int heads; int sharing; int start;
    int q_offset; int q_text; int q_position;
    int k_offset; int k_text; int k_position;
    int v_offset; int v_text; int v_position;
    float scale;
};
const int TILE = 16;
const int QUADS = (SIZE + 3) / 4;
// Stands for "not seen"; finite, so that a tile of nothing makes no NaN.
const float HIDDEN = -1e30;

vec4 key_quad(int from, int quad) {
    if (ALIGNED) {
        return key_quads[(from >> 2) + quad];
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
        return value_quads[(from >> 2) + quad];
    }
    vec4 found = vec4(0.0);
    for (int lane = 0; lane < 4; ++lane) {
        if (4 * quad + lane < SIZE) {
            found[lane] = values[from + 4 * quad + lane];
        }
    }
    return found;
}

void main() {
    int text = int(gl_WorkGroupID.z) / heads;
    int head = int(gl_WorkGroupID.z) - text * heads;
    int first_query = int(gl_WorkGroupID.y) * int(gl_WorkGroupSize.x);
    int query = first_query + int(gl_LocalInvocationID.x);
    int place = start + query;
    int last_query = min(first_query + int(gl_WorkGroupSize.x), length) - 1;
    int low = 0;
    int high = min(start + counts[text], total);
    if (CAUSAL) {
        high = min(high, start + last_query + 1);
    }
    if (WINDOW >= 0) {
        low = max(0, start + first_query - WINDOW);
        high = min(high, start + last_query + WINDOW + 1);
    }
    int shared_head = (head / sharing) * SIZE;
    int q_from = q_offset + text * q_text + min(query, length - 1) * q_position + head * SIZE;
    int k_from = k_offset + text * k_text + shared_head;
    int v_from = v_offset + text * v_text + shared_head;
    vec4 mine[QUADS];
    vec4 sums[QUADS];
    [[unroll]] for (int quad = 0; quad < QUADS; ++quad) {
        sums[quad] = vec4(0.0);
        mine[quad] = vec4(0.0);
        [[unroll]] for (int lane = 0; lane < 4; ++lane) {
            if (4 * quad + lane < SIZE) {
                mine[quad][lane] = queries[q_from + 4 * quad + lane];
            }
        }
    }
    float largest = HIDDEN;
    float weights = 0.0;
    for (int tile = low; tile < high; tile += TILE) {
        float scores[TILE];
        float peak = largest;
        [[unroll]] for (int key = 0; key < TILE; ++key) {
            int at = min(tile + key, high - 1);
            float dots = 0.0;
            [[unroll]] for (int quad = 0; quad < QUADS; ++quad) {
                vec4 k = key_quad(k_from + at * k_position, quad);
                dots = fma(mine[quad].x, k.x, dots);
                dots = fma(mine[quad].y, k.y, dots);
                dots = fma(mine[quad].z, k.z, dots);
                dots = fma(mine[quad].w, k.w, dots);
            }
            int there = tile + key;
            bool seen = there < high && (!CAUSAL || there <= place) && (WINDOW < 0 || abs(there - place) <= WINDOW);
            scores[key] = seen ? dots * scale : HIDDEN;
            peak = max(peak, scores[key]);
        }
        float kept = exponential(largest - peak);
        largest = peak;
        weights *= kept;
        [[unroll]] for (int quad = 0; quad < QUADS; ++quad) {
            sums[quad] *= kept;
        }
        [[unroll]] for (int key = 0; key < TILE; ++key) {
            float weight = scores[key] == HIDDEN ? 0.0 : exponential(scores[key] - largest);
            weights += weight;
            int at = min(tile + key, high - 1);
            [[unroll]] for (int quad = 0; quad < QUADS; ++quad) {
                sums[quad] = fma(vec4(weight), value_quad(v_from + at * v_position, quad), sums[quad]);
            }
        }
    }
    if (query >= length) {
        return;
    }
    float share = weights > 0.0 ? 1.0 / weights : 0.0;
    int to = ((text * length + query) * heads + head) * SIZE;
    bool nothing = isnan(weights);
    [[unroll]] for (int quad = 0; quad < QUADS; ++quad) {
        [[unroll]] for (int lane = 0; lane < 4; ++lane) {
            if (4 * quad + lane < SIZE) {
                result[to + 4 * quad + lane] = nothing ? weights : sums[quad][lane] * share;
            }
        }
    }
}
