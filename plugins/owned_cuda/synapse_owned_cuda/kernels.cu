/* Kernels of the CUDA backend: everything but the products of matrices.
 *
 * Rows are stored as float or as Half and computed in float. Each kernel exists once for each storage type, as NAME_f32
 * and NAME_f16. Shapes are those of the host's tensor operations: B rows, S positions, C features, N heads of D features,
 * Nk heads of keys. A pointer that may be null says so. Sizes are ints: a tensor has fewer than 2^31 elements.
 *
 * The file includes nothing, so that NVIDIA's runtime compiler needs no headers and a C++ compiler can take the same text:
 * outside CUDA a shim defines what is device-specific, HALF_TO_FLOAT and FLOAT_TO_HALF among it.
 */

struct Half { unsigned short bits; };

#ifndef HALF_TO_FLOAT
__device__ inline float half_to_float(unsigned short bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}
__device__ inline unsigned short float_to_half(float x) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
#define HALF_TO_FLOAT(bits) half_to_float(bits)
#define FLOAT_TO_HALF(x) float_to_half(x)
#endif

__device__ inline float load(const float *p, int i) { return p[i]; }
__device__ inline float load(const Half *p, int i) { return HALF_TO_FLOAT(p[i].bits); }
__device__ inline void store(float *p, int i, float x) { p[i] = x; }
__device__ inline void store(Half *p, int i, float x) { p[i].bits = FLOAT_TO_HALF(x); }

/* --- sums of a block ----------------------------------------------------------------------------------------- */

#define WARP 32
#define ALL_LANES 0xffffffffu

/* The sum over the block, for every thread; blocks have a multiple of 32 threads, 1,024 at most. */
__device__ inline float block_sum(float x, float *scratch) {
    for (int step = WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    __syncthreads(); /* an earlier sum may still be read */
    if (lane == 0) scratch[warp] = x;
    __syncthreads();
    x = lane < warps ? scratch[lane] : 0.0f;
    for (int step = WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

/* --- activations --------------------------------------------------------------------------------------------- */

enum { ACT_NONE, ACT_GELU, ACT_GELU_TANH, ACT_SILU, ACT_TANH, ACT_RELU };

__device__ inline float activated(float x, int act) {
    switch (act) {
    case ACT_GELU: return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    case ACT_GELU_TANH: return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
    case ACT_SILU: return x / (1.0f + expf(-x));
    case ACT_TANH: return tanhf(x);
    case ACT_RELU: return x > 0.0f ? x : 0.0f;
    default: return x;
    }
}

/* --- rows: one block for each of [B, S] ---------------------------------------------------------------------- */

/* out[row] = table[ids[row]] */
template <class T> __device__ inline void embedding(T *out, const T *table, const int *ids, int c) {
    int row = blockIdx.x, from = ids[row];
    for (int i = threadIdx.x; i < c; i += blockDim.x) out[row * c + i] = table[from * c + i];
}

/* out = a + b or a * b; a stride of 0 repeats the one row there is. Row strides are in elements. */
template <class T>
__device__ inline void combined(T *out, const T *a, const T *b, int s, int c, int a_row, int a_position, int b_row,
                                int b_position, int product) {
    int row = blockIdx.x / s, position = blockIdx.x % s;
    const T *left = a + row * a_row + position * a_position, *right = b + row * b_row + position * b_position;
    for (int i = threadIdx.x; i < c; i += blockDim.x) {
        float x = load(left, i), y = load(right, i);
        store(out, blockIdx.x * c + i, product ? x * y : x + y);
    }
}

/* total = x + r where r is given (r and total both, or both null); normed = the layer norm of total. b may be null. */
template <class T>
__device__ inline void layer_norm(T *normed, T *total, const T *x, const T *r, const T *w, const T *b, int c, float eps) {
    __shared__ float scratch[WARP];
    int at = blockIdx.x * c;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < c; i += blockDim.x) {
        float value = load(x, at + i);
        if (r) {
            store(total, at + i, value + load(r, at + i));
            value = load(total, at + i);
        }
        sum += value;
    }
    float mean = block_sum(sum, scratch) / c;
    const T *source = r ? total : x;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < c; i += blockDim.x) {
        float off = load(source, at + i) - mean;
        squares += off * off;
    }
    float scale = 1.0f / sqrtf(block_sum(squares, scratch) / c + eps);
    for (int i = threadIdx.x; i < c; i += blockDim.x) {
        float value = (load(source, at + i) - mean) * scale * load(w, i);
        store(normed, at + i, b ? value + load(b, i) : value);
    }
}

/* The same by the root mean square; over C of rows or D of heads, one block for each. */
template <class T>
__device__ inline void rms_norm(T *normed, T *total, const T *x, const T *r, const T *w, int c, float eps) {
    __shared__ float scratch[WARP];
    int at = blockIdx.x * c;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < c; i += blockDim.x) {
        float value = load(x, at + i);
        if (r) {
            store(total, at + i, value + load(r, at + i));
            value = load(total, at + i);
        }
        squares += value * value;
    }
    float scale = 1.0f / sqrtf(block_sum(squares, scratch) / c + eps);
    const T *source = r ? total : x;
    for (int i = threadIdx.x; i < c; i += blockDim.x) store(normed, at + i, load(source, at + i) * scale * load(w, i));
}

/* x = act(x + bias), in place, after a product; bias may be null. */
template <class T> __device__ inline void bias_act(T *x, const T *bias, int c, int act) {
    int at = blockIdx.x * c;
    for (int i = threadIdx.x; i < c; i += blockDim.x) {
        float value = load(x, at + i);
        store(x, at + i, activated(bias ? value + load(bias, i) : value, act));
    }
}

/* out = act(first half) * second half of rows of 2c. */
template <class T> __device__ inline void gated_halves(T *out, const T *x, int c, int act) {
    int from = blockIdx.x * 2 * c, to = blockIdx.x * c;
    for (int i = threadIdx.x; i < c; i += blockDim.x)
        store(out, to + i, activated(load(x, from + i), act) * load(x, from + c + i));
}

/* out = act(gate) * up. */
template <class T> __device__ inline void gated_pair(T *out, const T *gate, const T *up, int c, int act) {
    int at = blockIdx.x * c;
    for (int i = threadIdx.x; i < c; i += blockDim.x)
        store(out, at + i, activated(load(gate, at + i), act) * load(up, at + i));
}

/* --- heads: one block for each of [B, S] or [B, N, S] -------------------------------------------------------- */

/* out [B, N, S, D] from n * d features at offset of rows of width, so that a joined product needs no cutting. */
template <class T>
__device__ inline void heads(T *out, const T *x, int s, int n, int d, int width, int offset) {
    int row = blockIdx.x / s, position = blockIdx.x % s;
    const T *source = x + blockIdx.x * width + offset;
    for (int i = threadIdx.x; i < n * d; i += blockDim.x)
        out[((row * n + i / d) * s + position) * d + i % d] = source[i];
}

/* out [B, S, N * D] from [B, N, S, D]; the width is that of the queries, which need not be that of the hidden rows. */
template <class T> __device__ inline void merge_heads(T *out, const T *h, int s, int n, int d) {
    int row = blockIdx.x / s, position = blockIdx.x % s;
    for (int i = threadIdx.x; i < n * d; i += blockDim.x)
        out[blockIdx.x * n * d + i] = h[((row * n + i / d) * s + position) * d + i % d];
}

/* Rotate the pair (i, i + D/2) by the angle of its position: table is [2, positions, D/2], cosines first. */
template <class T>
__device__ inline void rope(T *out, const T *h, const float *table, int s, int d, int start, int positions) {
    int half = d / 2, place = start + blockIdx.x % s, at = blockIdx.x * d;
    const float *cosine = table + place * half, *sine = table + (positions + place) * half;
    for (int i = threadIdx.x; i < half; i += blockDim.x) {
        float low = load(h, at + i), high = load(h, at + half + i);
        store(out, at + i, low * cosine[i] - high * sine[i]);
        store(out, at + half + i, high * cosine[i] + low * sine[i]);
    }
}

/* --- attention ----------------------------------------------------------------------------------------------- */

#define TILE_QUERIES 32
#define TILE_KEYS 32
#define LANES 4 /* threads that share one query, each with every fourth feature */
#define GROUP 8 /* keys whose scores are held at once */
#define HIDDEN (-1e30f)

/* Softmax attention with the largest score and the sum kept as the keys go by: no score is ever stored.
 *
 * Grid (ceil(S / 32), N, B), block 128. Q is [B, N, S, D], K and V [B, Nk, T, D], out as Q. Query s is at position
 * start + s; key j is seen iff j < start + counts[b], j <= position when causal, |j - position| <= window unless it is
 * negative. Tiles nobody sees are skipped. PER_LANE is D / 4 rounded up to a size that is compiled; D may be less.
 */
template <class T, int PER_LANE>
__device__ inline void attention(T *out, const T *q, const T *k, const T *v, const int *counts, int n, int nk, int s, int t,
                                 int d, int start, float scale, int causal, int window) {
    __shared__ float keys[TILE_KEYS * PER_LANE * LANES], values[TILE_KEYS * PER_LANE * LANES];
    int lane = threadIdx.x % LANES, query = blockIdx.x * TILE_QUERIES + threadIdx.x / LANES;
    int head = blockIdx.y, row = blockIdx.z;
    int limit = min(start + counts[row], t);
    int first = start + blockIdx.x * TILE_QUERIES, last = min(first + TILE_QUERIES, start + s) - 1;
    int low = window < 0 ? 0 : max(0, first - window), high = limit;
    if (causal) high = min(high, last + 1);
    if (window >= 0) high = min(high, last + window + 1);
    int position = start + query, here = query < s;
    const T *from = q + ((row * n + head) * s + (here ? query : 0)) * d;
    int key_head = row * nk + head / (n / nk);
    float mine[PER_LANE], sums[PER_LANE], largest = HIDDEN, total = 0.0f;
#pragma unroll
    for (int j = 0; j < PER_LANE; j++) {
        int i = lane + j * LANES;
        mine[j] = i < d ? load(from, i) * scale : 0.0f;
        sums[j] = 0.0f;
    }
    for (int tile = low; tile < high; tile += TILE_KEYS) {
        __syncthreads();
        for (int i = threadIdx.x; i < TILE_KEYS * PER_LANE * LANES; i += blockDim.x) {
            int key = tile + i / (PER_LANE * LANES), feature = i % (PER_LANE * LANES);
            int inside = key < high && feature < d, at = (key_head * t + key) * d + feature;
            keys[i] = inside ? load(k, at) : 0.0f;
            values[i] = inside ? load(v, at) : 0.0f;
        }
        __syncthreads();
        for (int group = 0; group < TILE_KEYS; group += GROUP) {
            float scores[GROUP], best = largest;
#pragma unroll
            for (int g = 0; g < GROUP; g++) {
                const float *key = keys + (group + g) * PER_LANE * LANES + lane;
                float product = 0.0f;
#pragma unroll
                for (int j = 0; j < PER_LANE; j++) product += mine[j] * key[j * LANES];
                product += __shfl_xor_sync(ALL_LANES, product, 1);
                product += __shfl_xor_sync(ALL_LANES, product, 2);
                int place = tile + group + g, off = position - place;
                int seen = place < high && (!causal || off >= 0) && (window < 0 || (off <= window && -off <= window));
                scores[g] = seen ? product : HIDDEN;
                best = fmaxf(best, scores[g]);
            }
            float kept = expf(largest - best);
            largest = best;
            total *= kept;
#pragma unroll
            for (int j = 0; j < PER_LANE; j++) sums[j] *= kept;
#pragma unroll
            for (int g = 0; g < GROUP; g++) {
                const float *value = values + (group + g) * PER_LANE * LANES + lane;
                float weight = scores[g] > HIDDEN ? expf(scores[g] - largest) : 0.0f;
                total += weight;
#pragma unroll
                for (int j = 0; j < PER_LANE; j++) sums[j] += weight * value[j * LANES];
            }
        }
    }
    float share = total > 0.0f ? 1.0f / total : 0.0f;
    T *to = out + ((row * n + head) * s + (here ? query : 0)) * d;
#pragma unroll
    for (int j = 0; j < PER_LANE; j++) {
        int i = lane + j * LANES;
        if (here && i < d) store(to, i, sums[j] * share);
    }
}

/* --- ways out: one block for each row of the batch ----------------------------------------------------------- */

/* out [B, C] = position 0, or the last valid one, of x [B, S, C]. */
template <class T> __device__ inline void one_row(T *out, const T *x, const int *counts, int s, int c, int last) {
    int at = (blockIdx.x * s + (last ? counts[blockIdx.x] - 1 : 0)) * c;
    for (int i = threadIdx.x; i < c; i += blockDim.x) out[blockIdx.x * c + i] = x[at + i];
}

/* out [B, C] in float = the mean of the first counts positions. */
template <class T> __device__ inline void mean_rows(float *out, const T *x, const int *counts, int s, int c) {
    int count = counts[blockIdx.x];
    for (int i = threadIdx.x; i < c; i += blockDim.x) {
        float sum = 0.0f;
        for (int position = 0; position < count; position++) sum += load(x, (blockIdx.x * s + position) * c + i);
        out[blockIdx.x * c + i] = sum / count;
    }
}

/* out [B, C] in float = x, divided by its Euclidean norm when asked; a row of zeros stays so. */
template <class T> __device__ inline void result(float *out, const T *x, int c, int normalise) {
    __shared__ float scratch[WARP];
    int at = blockIdx.x * c;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < c; i += blockDim.x) squares += load(x, at + i) * load(x, at + i);
    float norm = sqrtf(block_sum(squares, scratch));
    float scale = normalise && norm > 0.0f ? norm : 1.0f;
    for (int i = threadIdx.x; i < c; i += blockDim.x) out[at + i] = load(x, at + i) / scale;
}

/* out [B, count] in float = the products of x [B, C] with the named rows of w [V, C]; grid (count, B). */
template <class T> __device__ inline void chosen_logits(float *out, const T *x, const T *w, const int *rows, int c) {
    __shared__ float scratch[WARP];
    const T *left = x + blockIdx.y * c, *right = w + rows[blockIdx.x] * c;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < c; i += blockDim.x) sum += load(left, i) * load(right, i);
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) out[blockIdx.y * gridDim.x + blockIdx.x] = sum;
}

/* --- entry points -------------------------------------------------------------------------------------------- */

#define KERNELS(T, SUFFIX) \
    extern "C" __global__ void embedding_##SUFFIX(T *out, const T *table, const int *ids, int c) { \
        embedding(out, table, ids, c); \
    } \
    extern "C" __global__ void combined_##SUFFIX(T *out, const T *a, const T *b, int s, int c, int a_row, int a_position, \
                                                 int b_row, int b_position, int product) { \
        combined(out, a, b, s, c, a_row, a_position, b_row, b_position, product); \
    } \
    extern "C" __global__ void layer_norm_##SUFFIX(T *normed, T *total, const T *x, const T *r, const T *w, const T *b, \
                                                   int c, float eps) { \
        layer_norm(normed, total, x, r, w, b, c, eps); \
    } \
    extern "C" __global__ void rms_norm_##SUFFIX(T *normed, T *total, const T *x, const T *r, const T *w, int c, \
                                                 float eps) { \
        rms_norm(normed, total, x, r, w, c, eps); \
    } \
    extern "C" __global__ void bias_act_##SUFFIX(T *x, const T *bias, int c, int act) { bias_act(x, bias, c, act); } \
    extern "C" __global__ void gated_halves_##SUFFIX(T *out, const T *x, int c, int act) { \
        gated_halves(out, x, c, act); \
    } \
    extern "C" __global__ void gated_pair_##SUFFIX(T *out, const T *gate, const T *up, int c, int act) { \
        gated_pair(out, gate, up, c, act); \
    } \
    extern "C" __global__ void heads_##SUFFIX(T *out, const T *x, int s, int n, int d, int width, int offset) { \
        heads(out, x, s, n, d, width, offset); \
    } \
    extern "C" __global__ void merge_heads_##SUFFIX(T *out, const T *h, int s, int n, int d) { \
        merge_heads(out, h, s, n, d); \
    } \
    extern "C" __global__ void rope_##SUFFIX(T *out, const T *h, const float *table, int s, int d, int start, \
                                             int positions) { \
        rope(out, h, table, s, d, start, positions); \
    } \
    extern "C" __global__ void attention64_##SUFFIX(T *out, const T *q, const T *k, const T *v, const int *counts, int n, \
                                                    int nk, int s, int t, int d, int start, float scale, int causal, \
                                                    int window) { \
        attention<T, 16>(out, q, k, v, counts, n, nk, s, t, d, start, scale, causal, window); \
    } \
    extern "C" __global__ void attention128_##SUFFIX(T *out, const T *q, const T *k, const T *v, const int *counts, int n, \
                                                     int nk, int s, int t, int d, int start, float scale, int causal, \
                                                     int window) { \
        attention<T, 32>(out, q, k, v, counts, n, nk, s, t, d, start, scale, causal, window); \
    } \
    extern "C" __global__ void one_row_##SUFFIX(T *out, const T *x, const int *counts, int s, int c, int last) { \
        one_row(out, x, counts, s, c, last); \
    } \
    extern "C" __global__ void mean_rows_##SUFFIX(float *out, const T *x, const int *counts, int s, int c) { \
        mean_rows(out, x, counts, s, c); \
    } \
    extern "C" __global__ void result_##SUFFIX(float *out, const T *x, int c, int normalise) { \
        result(out, x, c, normalise); \
    } \
    extern "C" __global__ void chosen_logits_##SUFFIX(float *out, const T *x, const T *w, const int *rows, int c) { \
        chosen_logits(out, x, w, rows, c); \
    }

KERNELS(float, f32)
KERNELS(Half, f16)
