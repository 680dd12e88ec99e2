/* Kernels of the CUDA backend: everything but the products of weights.
 *
 * Rows are stored as float or as Half and computed in float. Each kernel exists once for each storage type, as NAME_f32
 * and NAME_f16. Shapes are those of the host's tensor operations: B rows, S positions, C features, N heads of D features,
 * Nk heads of keys. Heads stay where a product left them: D features at an offset in rows of some width, so nothing is
 * transposed. A pointer that may be null says so. Sizes are ints: a tensor has fewer than 2^31 elements.
 *
 * Row kernels take four features at a time where the width is a multiple of four (8 or 16 bytes a thread), else one.
 *
 * The file includes nothing, so that NVIDIA's runtime compiler needs no headers and a C++ compiler can take the same text:
 * outside CUDA a shim defines what is device-specific: HALF_TO_FLOAT, FLOAT_TO_HALF, MMA_16_8_16 and MMA_16_8_8.
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
/* The products of a warp's tensor cores: c [16, 8] += a [16, 16] * b [16, 8], and the same of 8 features. */
__device__ inline void mma_16_8_16(float (&c)[4], unsigned int a0, unsigned int a1, unsigned int a2, unsigned int a3,
                                   unsigned int b0, unsigned int b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ inline void mma_16_8_8(float (&c)[4], unsigned int a0, unsigned int a1, unsigned int b0) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(b0));
}
#define HALF_TO_FLOAT(bits) half_to_float(bits)
#define FLOAT_TO_HALF(x) float_to_half(x)
#define MMA_16_8_16 mma_16_8_16
#define MMA_16_8_8 mma_16_8_8
#if __CUDA_ARCH__ < 800
#define EIGHT_AT_ONCE /* Turing's tensor cores */
#endif
#endif

/* c [16, 8] += a [16, 16] * b [16, 8] of a warp, float sums of half products. Lane l holds, with g = l / 4 and p = l % 4 * 2:
 * of a rows g and g + 8 at features p, p + 1, then the same rows 8 features on; of b column g at rows p, p + 1, then 8 rows
 * on; of c rows g and g + 8 at columns p, p + 1 (PTX ISA, fragments of mma.m16n8k16 and mma.m16n8k8). */
__device__ inline void multiply(float (&c)[4], const unsigned int (&a)[4], unsigned int b0, unsigned int b1) {
#ifdef EIGHT_AT_ONCE
    MMA_16_8_8(c, a[0], a[1], b0);
    MMA_16_8_8(c, a[2], a[3], b1);
#else
    MMA_16_8_16(c, a[0], a[1], a[2], a[3], b0, b1);
#endif
}

__device__ inline float load(const float *p, int i) { return p[i]; }
__device__ inline float load(const Half *p, int i) { return HALF_TO_FLOAT(p[i].bits); }
__device__ inline void store(float *p, int i, float x) { p[i] = x; }
__device__ inline void store(Half *p, int i, float x) { p[i].bits = FLOAT_TO_HALF(x); }

/* W neighbours moved at once; i counts packs. */
template <class T, int W> struct alignas(W * sizeof(T)) Pack { T item[W]; };

template <int W, class T> __device__ inline Pack<T, W> pack_at(const T *p, int i) { return ((const Pack<T, W> *)p)[i]; }
template <int W, class T> __device__ inline void put(T *p, int i, const Pack<T, W> &x) { ((Pack<T, W> *)p)[i] = x; }

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
template <int W, class T> __device__ inline void embedding(T *out, const T *table, const int *ids, int c) {
    int packs = c / W, row = blockIdx.x * packs, from = ids[blockIdx.x] * packs;
    for (int i = threadIdx.x; i < packs; i += blockDim.x) put<W>(out, row + i, pack_at<W>(table, from + i));
}

/* out = a + b or a * b; a stride of 0 repeats the one row there is. Row strides are in elements. */
template <int W, class T>
__device__ inline void combined(T *out, const T *a, const T *b, int s, int c, int a_row, int a_position, int b_row,
                                int b_position, int product) {
    int row = blockIdx.x / s, position = blockIdx.x % s, packs = c / W;
    const T *left = a + row * a_row + position * a_position, *right = b + row * b_row + position * b_position;
    for (int i = threadIdx.x; i < packs; i += blockDim.x) {
        Pack<T, W> x = pack_at<W>(left, i), y = pack_at<W>(right, i), made;
#pragma unroll
        for (int k = 0; k < W; k++) {
            float p = load(x.item, k), q = load(y.item, k);
            store(made.item, k, product ? p * q : p + q);
        }
        put<W>(out, blockIdx.x * packs + i, made);
    }
}

/* Packs of a row that one thread of a norm holds: a block must have a quarter of the row's packs as threads, or more. */
#define HELD 4

/* What a norm is of: x, or x + r rounded and kept as total where r is given. The sum of all held values is returned. */
template <int W, class T>
__device__ inline float held_row(float (&held)[HELD][W], T *total, const T *x, const T *r, int packs) {
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < HELD; j++) {
        int i = threadIdx.x + j * blockDim.x, at = blockIdx.x * packs + i;
        if (i < packs) {
            Pack<T, W> in = pack_at<W>(x, at);
            if (r) {
                Pack<T, W> more = pack_at<W>(r, at);
#pragma unroll
                for (int k = 0; k < W; k++) store(in.item, k, load(in.item, k) + load(more.item, k));
                put<W>(total, at, in);
            }
#pragma unroll
            for (int k = 0; k < W; k++) sum += held[j][k] = load(in.item, k);
        }
    }
    return sum;
}

/* The sum of (held - off)^2 over this thread's part of the row. */
template <int W> __device__ inline float held_squares(const float (&held)[HELD][W], float off, int packs) {
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < HELD; j++)
        if (threadIdx.x + j * blockDim.x < packs)
#pragma unroll
            for (int k = 0; k < W; k++) sum += (held[j][k] - off) * (held[j][k] - off);
    return sum;
}

/* normed = (held - off) * scale * w + b; b may be null. */
template <int W, class T>
__device__ inline void put_normed(T *normed, const float (&held)[HELD][W], float off, float scale, const T *w, const T *b,
                                  int packs) {
#pragma unroll
    for (int j = 0; j < HELD; j++) {
        int i = threadIdx.x + j * blockDim.x;
        if (i < packs) {
            Pack<T, W> weight = pack_at<W>(w, i), made, bias;
            if (b) bias = pack_at<W>(b, i);
#pragma unroll
            for (int k = 0; k < W; k++) {
                float value = (held[j][k] - off) * scale * load(weight.item, k);
                store(made.item, k, b ? value + load(bias.item, k) : value);
            }
            put<W>(normed, blockIdx.x * packs + i, made);
        }
    }
}

/* total = x + r where r is given (r and total both, or both null); normed = the layer norm of total. b may be null. The row
 * is read once and held in registers. */
template <int W, class T>
__device__ inline void layer_norm(T *normed, T *total, const T *x, const T *r, const T *w, const T *b, int c, float eps) {
    __shared__ float scratch[WARP];
    float held[HELD][W];
    float mean = block_sum(held_row<W>(held, total, x, r, c / W), scratch) / c;
    float scale = 1.0f / sqrtf(block_sum(held_squares<W>(held, mean, c / W), scratch) / c + eps);
    put_normed<W>(normed, held, mean, scale, w, b, c / W);
}

/* The same by the root mean square. */
template <int W, class T>
__device__ inline void rms_norm(T *normed, T *total, const T *x, const T *r, const T *w, int c, float eps) {
    __shared__ float scratch[WARP];
    float held[HELD][W];
    held_row<W>(held, total, x, r, c / W);
    float scale = 1.0f / sqrtf(block_sum(held_squares<W>(held, 0.0f, c / W), scratch) / c + eps);
    put_normed<W>(normed, held, 0.0f, scale, w, (const T *)nullptr, c / W);
}

/* x = act(x + bias), in place, after a product; bias may be null. */
template <int W, class T> __device__ inline void bias_act(T *x, const T *bias, int c, int act) {
    int packs = c / W;
    for (int i = threadIdx.x; i < packs; i += blockDim.x) {
        Pack<T, W> made = pack_at<W>(x, blockIdx.x * packs + i), more;
        if (bias) more = pack_at<W>(bias, i);
#pragma unroll
        for (int k = 0; k < W; k++) {
            float value = load(made.item, k);
            store(made.item, k, activated(bias ? value + load(more.item, k) : value, act));
        }
        put<W>(x, blockIdx.x * packs + i, made);
    }
}

/* out = act(gate) * up, of rows whose starts are width elements apart: the halves of one product, or two products. */
template <int W, class T>
__device__ inline void gated(T *out, const T *gate, const T *up, int c, int width, int act) {
    int packs = c / W, from = blockIdx.x * (width / W);
    for (int i = threadIdx.x; i < packs; i += blockDim.x) {
        Pack<T, W> x = pack_at<W>(gate, from + i), y = pack_at<W>(up, from + i), made;
#pragma unroll
        for (int k = 0; k < W; k++) store(made.item, k, activated(load(x.item, k), act) * load(y.item, k));
        put<W>(out, blockIdx.x * packs + i, made);
    }
}

/* --- heads: one block for each of [B, S], one warp for a head at a time -------------------------------------- */

/* Pairs of features a lane holds: heads have 128 features at most. */
#define PAIRS 2

/* out [B, S, N, D] from N heads at offset of rows of width: their rms norm over D when w is given, then the pair (i,
 * i + D/2) rotated by the angle of its position when a table is: [2, positions, D/2], cosines first. Either may be null. */
template <class T>
__device__ inline void rotated(T *out, const T *x, const T *w, const float *table, int s, int n, int d, int width,
                               int offset, int start, int positions, float eps) {
    int lane = threadIdx.x % WARP, half = (d + 1) / 2, place = start + blockIdx.x % s;
    for (int head = threadIdx.x / WARP; head < n; head += blockDim.x / WARP) {
        const T *source = x + blockIdx.x * width + offset + head * d;
        T *to = out + (blockIdx.x * n + head) * d;
        float low[PAIRS], high[PAIRS], squares = 0.0f;
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            int i = lane + j * WARP;
            low[j] = i < half ? load(source, i) : 0.0f;
            high[j] = i + half < d && i < half ? load(source, i + half) : 0.0f;
            squares += low[j] * low[j] + high[j] * high[j];
        }
        if (w) {
            for (int step = WARP / 2; step > 0; step /= 2) squares += __shfl_xor_sync(ALL_LANES, squares, step);
            float scale = 1.0f / sqrtf(squares / d + eps);
#pragma unroll
            for (int j = 0; j < PAIRS; j++) {
                int i = lane + j * WARP;
                if (i < half) low[j] *= scale * load(w, i);
                if (i < half && i + half < d) high[j] *= scale * load(w, i + half);
            }
        }
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            int i = lane + j * WARP;
            float cosine = 1.0f, sine = 0.0f;
            if (table && i < half) {
                cosine = table[place * half + i];
                sine = table[(positions + place) * half + i];
            }
            if (i < half) store(to, i, low[j] * cosine - high[j] * sine);
            if (i < half && i + half < d) store(to, i + half, high[j] * cosine + low[j] * sine);
        }
    }
}

/* --- attention ----------------------------------------------------------------------------------------------- */

/* The score of a key that is not seen. Compared for equality alone: a score that is no number must not pass for hidden. */
#define HIDDEN (-1e30f)

/* The score of a seen key. One as low as a hidden one's has overflowed on its way, and is no number: a row of nothing else
 * would come out as zeros. */
__device__ inline float sound(float score) { return score > HIDDEN ? score : __int_as_float(0x7fc00000); }

/* What attention is given beside its arrays. Query s of [B, S] is at position start + s. A row of the batch has room for t
 * keys; key j is seen iff j < start + counts[b], j <= position when causal, |j - position| <= window unless negative. */
struct Sight {
    int s, t, start, causal, window;
};

/* Keys that somebody among queries first to last (positions) may see: from low up to high. */
struct Range {
    int low, high;
};

__device__ inline Range range_of(const Sight &sight, int count, int first, int last) {
    Range range = {sight.window < 0 ? 0 : max(0, first - sight.window), min(sight.start + count, sight.t)};
    if (sight.causal) range.high = min(range.high, last + 1);
    if (sight.window >= 0) range.high = min(range.high, last + sight.window + 1);
    return range;
}

__device__ inline int is_seen(const Sight &sight, int position, int key, int high) {
    int off = position - key;
    return key < high && (!sight.causal || off >= 0) && (sight.window < 0 || (off <= sight.window && -off <= sight.window));
}

/* Whether every query from first to last sees all of size keys from tile on. */
__device__ inline int all_seen(const Sight &sight, int first, int last, int tile, int size, int high) {
    int end = tile + size - 1;
    return end < high && (!sight.causal || end <= first) &&
           (sight.window < 0 || (last - tile <= sight.window && end - first <= sight.window));
}

#define TILE_QUERIES 32
#define TILE_KEYS 32
#define LANES 4 /* threads that share one query, each with every fourth feature */
#define GROUP 8 /* keys whose scores are held at once */

/* Softmax attention of float rows, with the largest score and the sum kept as the keys go by: no score is ever stored.
 *
 * Grid (ceil(S / 32), N, B), block 128. Queries, keys and values are D features of a head at an offset of rows of a width;
 * out is [B, S, N, D]. Tiles nobody sees are skipped. PER_LANE is D / 4 rounded up to a size that is compiled.
 */
template <int PER_LANE>
__device__ inline void attention(float *out, const float *q, const float *k, const float *v, const int *counts, int n,
                                 int nk, int d, int q_width, int k_width, int v_width, Sight sight, float scale) {
    __shared__ float keys[TILE_KEYS * PER_LANE * LANES], values[TILE_KEYS * PER_LANE * LANES];
    int lane = threadIdx.x % LANES, query = blockIdx.x * TILE_QUERIES + threadIdx.x / LANES;
    int head = blockIdx.y, row = blockIdx.z, key_head = head / (n / nk), s = sight.s;
    int first = sight.start + blockIdx.x * TILE_QUERIES, last = min(first + TILE_QUERIES, sight.start + s) - 1;
    Range range = range_of(sight, counts[row], first, last);
    int position = sight.start + query, here = query < s;
    const float *from = q + (row * s + (here ? query : 0)) * q_width + head * d;
    float mine[PER_LANE], sums[PER_LANE], largest = HIDDEN, total = 0.0f;
#pragma unroll
    for (int j = 0; j < PER_LANE; j++) {
        int i = lane + j * LANES;
        mine[j] = i < d ? from[i] * scale : 0.0f;
        sums[j] = 0.0f;
    }
    for (int tile = range.low; tile < range.high; tile += TILE_KEYS) {
        __syncthreads();
        for (int i = threadIdx.x; i < TILE_KEYS * PER_LANE * LANES; i += blockDim.x) {
            int key = tile + i / (PER_LANE * LANES), feature = i % (PER_LANE * LANES);
            int inside = key < range.high && feature < d, at = row * sight.t + key;
            keys[i] = inside ? k[at * k_width + key_head * d + feature] : 0.0f;
            values[i] = inside ? v[at * v_width + key_head * d + feature] : 0.0f;
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
                scores[g] = is_seen(sight, position, tile + group + g, range.high) ? sound(product) : HIDDEN;
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
                float weight = scores[g] == HIDDEN ? 0.0f : expf(scores[g] - largest);
                total += weight;
#pragma unroll
                for (int j = 0; j < PER_LANE; j++) sums[j] += weight * value[j * LANES];
            }
        }
    }
    float share = total > 0.0f ? 1.0f / total : 0.0f;
    float *to = out + ((row * s + (here ? query : 0)) * n + head) * d;
#pragma unroll
    for (int j = 0; j < PER_LANE; j++) {
        int i = lane + j * LANES;
        if (here && i < d) to[i] = sums[j] * share;
    }
}

/* Two neighbours as one word, the first in the low half. */
__device__ inline unsigned int joined(unsigned int low, unsigned int high) { return low | high << 16; }
__device__ inline unsigned int halves(float low, float high) { return joined(FLOAT_TO_HALF(low), FLOAT_TO_HALF(high)); }

struct alignas(16) Eight {
    unsigned int words[4];
};

/* Rows of keys or of values of one head into shared memory: SIZE rows of D features, PITCH apart, zeros past d and high. */
template <int D, int SIZE, int PITCH>
__device__ inline void fetched(unsigned short *to, const Half *from, int tile, int high, int d, int width, int by_eight) {
    for (int i = threadIdx.x; i < SIZE * D / 8; i += blockDim.x) {
        int key = i / (D / 8), feature = i % (D / 8) * 8, at = key * PITCH + feature;
        const Half *source = from + (tile + key) * width + feature;
        if (by_eight) {
            Eight eight = {{0, 0, 0, 0}};
            if (tile + key < high && feature < d) eight = *(const Eight *)source;
            *(Eight *)(to + at) = eight;
        } else {
            for (int j = 0; j < 8; j++) to[at + j] = tile + key < high && feature + j < d ? source[j].bits : 0;
        }
    }
}

#define WARPS 4
#define WARP_QUERIES 16

/* The same for Half rows, by tensor cores: both products are of halves and summed in float; weights are rounded to half for
 * the second, and the softmax is of base 2.
 *
 * Grid (ceil(S / 64), N, B), block 128; a warp has 16 queries. SIZE keys and values lie in shared memory, their rows eight
 * features longer than D, which spreads a fragment over all banks.
 */
template <int D, int SIZE>
__device__ inline void attention(Half *out, const Half *q, const Half *k, const Half *v, const int *counts, int n, int nk,
                                 int d, int q_width, int k_width, int v_width, Sight sight, float scale) {
    enum { PITCH = D + 8, STEPS = D / 16, COLUMNS = SIZE / 8, BLOCK_QUERIES = WARPS * WARP_QUERIES };
    alignas(16) __shared__ unsigned short keys[SIZE * PITCH];
    alignas(16) __shared__ unsigned short values[SIZE * PITCH];
    int lane = threadIdx.x % WARP, group = lane / 4, pair = lane % 4 * 2;
    int head = blockIdx.y, row = blockIdx.z, key_head = head / (n / nk), s = sight.s;
    int first = sight.start + blockIdx.x * BLOCK_QUERIES, last = min(first + BLOCK_QUERIES, sight.start + s) - 1;
    Range range = range_of(sight, counts[row], first, last);
    int by_eight = (d | k_width | v_width | (int)(unsigned long long)k / 2 | (int)(unsigned long long)v / 2) % 8 == 0;
    k += row * sight.t * k_width + key_head * d;
    v += row * sight.t * v_width + key_head * d;
    int query = blockIdx.x * BLOCK_QUERIES + threadIdx.x / WARP * WARP_QUERIES + group;
    unsigned int queries[STEPS][4];
#pragma unroll
    for (int step = 0; step < STEPS; step++)
#pragma unroll
        for (int part = 0; part < 4; part++) {
            const Half *from = q + (row * s + min(query + part % 2 * 8, s - 1)) * q_width + head * d;
            int feature = step * 16 + part / 2 * 8 + pair;
            unsigned int low = feature < d ? from[feature].bits : 0, high = feature + 1 < d ? from[feature + 1].bits : 0;
            queries[step][part] = joined(low, high);
        }
    float sums[D / 8][4], largest[2] = {HIDDEN, HIDDEN}, totals[2] = {0.0f, 0.0f};
#pragma unroll
    for (int column = 0; column < D / 8; column++)
#pragma unroll
        for (int part = 0; part < 4; part++) sums[column][part] = 0.0f;
    for (int tile = range.low; tile < range.high; tile += SIZE) {
        __syncthreads();
        fetched<D, SIZE, PITCH>(keys, k, tile, range.high, d, k_width, by_eight);
        fetched<D, SIZE, PITCH>(values, v, tile, range.high, d, v_width, by_eight);
        __syncthreads();
        float scores[COLUMNS][4], best[2] = {largest[0], largest[1]};
        int whole = all_seen(sight, first, last, tile, SIZE, range.high);
#pragma unroll
        for (int column = 0; column < COLUMNS; column++) {
#pragma unroll
            for (int part = 0; part < 4; part++) scores[column][part] = 0.0f;
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                const unsigned int *key = (const unsigned int *)(keys + (column * 8 + group) * PITCH + step * 16 + pair);
                multiply(scores[column], queries[step], key[0], key[4]);
            }
#pragma unroll
            for (int part = 0; part < 4; part++) {
                int position = sight.start + query + part / 2 * 8, place = tile + column * 8 + pair + part % 2;
                float score = scores[column][part] * (scale * 1.44269504088896341f);
                scores[column][part] = whole || is_seen(sight, position, place, range.high) ? sound(score) : HIDDEN;
                best[part / 2] = fmaxf(best[part / 2], scores[column][part]);
            }
        }
        float kept[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            best[half] = fmaxf(best[half], __shfl_xor_sync(ALL_LANES, best[half], 1));
            best[half] = fmaxf(best[half], __shfl_xor_sync(ALL_LANES, best[half], 2));
            kept[half] = exp2f(largest[half] - best[half]);
            largest[half] = best[half];
            totals[half] *= kept[half];
        }
#pragma unroll
        for (int column = 0; column < D / 8; column++)
#pragma unroll
            for (int part = 0; part < 4; part++) sums[column][part] *= kept[part / 2];
#pragma unroll
        for (int column = 0; column < COLUMNS; column++)
#pragma unroll
            for (int part = 0; part < 4; part++) {
                float score = scores[column][part];
                scores[column][part] = score == HIDDEN ? 0.0f : exp2f(score - largest[part / 2]);
                totals[part / 2] += scores[column][part];
            }
#pragma unroll
        for (int step = 0; step < SIZE / 16; step++) {
            const float(&left)[4] = scores[step * 2], (&right)[4] = scores[step * 2 + 1];
            unsigned int weights[4] = {halves(left[0], left[1]), halves(left[2], left[3]), halves(right[0], right[1]),
                                       halves(right[2], right[3])};
#pragma unroll
            for (int column = 0; column < D / 8; column++) {
                const unsigned short *value = values + (step * 16 + pair) * PITCH + column * 8 + group;
                unsigned int near = joined(value[0], value[PITCH]), far = joined(value[8 * PITCH], value[9 * PITCH]);
                multiply(sums[column], weights, near, far);
            }
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        totals[half] += __shfl_xor_sync(ALL_LANES, totals[half], 1);
        totals[half] += __shfl_xor_sync(ALL_LANES, totals[half], 2);
        totals[half] = totals[half] > 0.0f ? 1.0f / totals[half] : 0.0f;
    }
#pragma unroll
    for (int column = 0; column < D / 8; column++)
#pragma unroll
        for (int part = 0; part < 4; part++) {
            int to = query + part / 2 * 8, feature = column * 8 + pair + part % 2;
            if (to < s && feature < d) store(out, ((row * s + to) * n + head) * d + feature, sums[column][part] * totals[part / 2]);
        }
}

/* --- ways out: one block for each row of the batch ----------------------------------------------------------- */

/* out [B, C] = position 0, or the last valid one, of x [B, S, C]. */
template <class T> __device__ inline void one_row(T *out, const T *x, const int *counts, int s, int c, int last) {
    int at = (blockIdx.x * s + (last ? counts[blockIdx.x] - 1 : 0)) * c;
    for (int i = threadIdx.x; i < c; i += blockDim.x) out[blockIdx.x * c + i] = x[at + i];
}

/* out [B, C] in float = the mean of the first counts positions. Grid (B, ceil(C / 32)): a warp sums every eighth position
 * of 32 features, the block's warps are added in their order. */
#define MEAN_WARPS 8
template <class T> __device__ inline void mean_rows(float *out, const T *x, const int *counts, int s, int c) {
    __shared__ float sums[MEAN_WARPS][WARP];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, feature = blockIdx.y * WARP + lane, count = counts[blockIdx.x];
    float sum = 0.0f;
    for (int position = warp; position < count && feature < c; position += MEAN_WARPS)
        sum += load(x, (blockIdx.x * s + position) * c + feature);
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || feature >= c) return;
    sum = 0.0f;
    for (int part = 0; part < MEAN_WARPS; part++) sum += sums[part][lane];
    out[blockIdx.x * c + feature] = sum / count;
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

#define BY_FOUR(c, kernel, ...) \
    if ((c) % 4 == 0) kernel<4>(__VA_ARGS__); \
    else kernel<1>(__VA_ARGS__)

#define KERNELS(T, SUFFIX) \
    extern "C" __global__ void embedding_##SUFFIX(T *out, const T *table, const int *ids, int c) { \
        BY_FOUR(c, embedding, out, table, ids, c); \
    } \
    extern "C" __global__ void combined_##SUFFIX(T *out, const T *a, const T *b, int s, int c, int a_row, int a_position, \
                                                 int b_row, int b_position, int product) { \
        BY_FOUR(c, combined, out, a, b, s, c, a_row, a_position, b_row, b_position, product); \
    } \
    extern "C" __global__ void layer_norm_##SUFFIX(T *normed, T *total, const T *x, const T *r, const T *w, const T *b, \
                                                   int c, float eps) { \
        BY_FOUR(c, layer_norm, normed, total, x, r, w, b, c, eps); \
    } \
    extern "C" __global__ void rms_norm_##SUFFIX(T *normed, T *total, const T *x, const T *r, const T *w, int c, \
                                                 float eps) { \
        BY_FOUR(c, rms_norm, normed, total, x, r, w, c, eps); \
    } \
    extern "C" __global__ void bias_act_##SUFFIX(T *x, const T *bias, int c, int act) { \
        BY_FOUR(c, bias_act, x, bias, c, act); \
    } \
    extern "C" __global__ void gated_halves_##SUFFIX(T *out, const T *x, int c, int act) { \
        BY_FOUR(c, gated, out, x, x + c, c, 2 * c, act); \
    } \
    extern "C" __global__ void gated_pair_##SUFFIX(T *out, const T *gate, const T *up, int c, int act) { \
        BY_FOUR(c, gated, out, gate, up, c, c, act); \
    } \
    extern "C" __global__ void rotated_##SUFFIX(T *out, const T *x, const T *w, const float *table, int s, int n, int d, \
                                                int width, int offset, int start, int positions, float eps) { \
        rotated(out, x, w, table, s, n, d, width, offset, start, positions, eps); \
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

/* Attention by the widest head it is for. Sizes are of the element the arrays begin at, offsets included. */
#define ATTENTION(NAME, T, ...) \
    extern "C" __global__ void __launch_bounds__(128) \
    NAME(T *out, const T *q, const T *k, const T *v, const int *counts, int n, int nk, int s, int t, int d, int q_width, \
         int q_offset, int k_width, int k_offset, int v_width, int v_offset, int start, float scale, int causal, \
         int window) { \
        Sight sight = {s, t, start, causal, window}; \
        attention<__VA_ARGS__>(out, q + q_offset, k + k_offset, v + v_offset, counts, n, nk, d, q_width, k_width, v_width, \
                               sight, scale); \
    }

ATTENTION(attention32_f32, float, 8)
ATTENTION(attention64_f32, float, 16)
ATTENTION(attention128_f32, float, 32)
ATTENTION(attention32_f16, Half, 32, 64)
ATTENTION(attention64_f16, Half, 64, 64)
ATTENTION(attention128_f16, Half, 128, 32)
