/* What kernels.cu needs of CUDA, for a C++ compiler: a block's threads are fibres of one thread.
 *
 * A fibre runs until it ends or waits: at __syncthreads for its block, in a shuffle for its warp. Who runs first is the
 * caller's choice of order, so what depends on it shows. A barrier that some thread of the block never reaches, which
 * hangs a GPU, ends the program here with a message.
 */
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#ifndef __x86_64__
#include <ucontext.h>
#endif
#include <utility>
#include <vector>

#define __device__
#define __global__
#define __launch_bounds__(threads)
#define __shared__ static
using std::max;
using std::min;

struct Dim3 { int x, y, z; };
inline Dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace cpu {

enum State { READY, AT_BLOCK, AT_WARP, DONE };
constexpr int LANES = 32, STACK = 1 << 16;

/* A switch of stacks. The library's own asks the system for the signal mask each time, and AddressSanitizer, which knows
 * it, forgets the whole stack: together most of a run. Ours keeps the registers a callee must keep; a fibre that ends has
 * returned from everything but `enter`, so it leaves nothing poisoned behind. */
#ifdef __x86_64__
extern "C" void cuda_on_cpu_switch(void **from, void *to);
asm(R"(
.text
.globl cuda_on_cpu_switch
cuda_on_cpu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
typedef void *Context;
inline void switch_to(Context &from, Context &to) { cuda_on_cpu_switch(&from, to); }
inline void begin(Context &context, std::vector<char> &stack, void (*entry)()) {
    uintptr_t top = ((uintptr_t)stack.data() + stack.size()) & ~(uintptr_t)15;
    /* Six registers, where to return to, and an end that nobody returns past. */
    void **frame = (void **)top - 8;
    std::fill(frame, frame + 8, nullptr);
    frame[6] = (void *)entry;
    context = frame;
}
#else
typedef ucontext_t Context;
inline void switch_to(Context &from, Context &to) { swapcontext(&from, &to); }
inline void begin(Context &context, std::vector<char> &stack, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack.data();
    context.uc_stack.ss_size = stack.size();
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
}
#endif

struct Fibre {
    Context context;
    State state = READY;
    std::vector<char> stack;
    float given[2] = {0.0f, 0.0f};
    uint32_t fragments[2][6] = {};
    int round = 0;
};

inline std::vector<Fibre> fibres;
inline Context scheduler;
inline int running = 0;
inline std::function<void()> body;

[[noreturn]] inline void fail(const char *what) {
    std::fprintf(stderr, "cuda_on_cpu: %s\n", what);
    std::exit(3);
}

inline void wait(State where) {
    Fibre &fibre = fibres[running];
    fibre.state = where;
    switch_to(fibre.context, scheduler);
}

inline void enter() {
    body();
    fibres[running].state = DONE;
    switch_to(fibres[running].context, scheduler);
}

inline bool all(int first, int last, State state) {
    for (int i = first; i < last; i++)
        if (fibres[i].state != state) return false;
    return true;
}

inline bool release(int first, int last, State state) {
    if (!all(first, last, state)) return false;
    for (int i = first; i < last; i++) fibres[i].state = READY;
    return true;
}

/* One block, its threads taken in the given order whenever more than one could run. */
inline void run_block(const std::vector<int> &order) {
    int threads = (int)order.size();
    for (Fibre &fibre : fibres) {
        fibre.state = READY;
        fibre.round = 0;
        begin(fibre.context, fibre.stack, enter);
    }
    while (!all(0, threads, DONE)) {
        bool moved = false;
        for (int thread : order) {
            if (fibres[thread].state != READY) continue;
            running = thread;
            threadIdx = {thread, 0, 0};
            switch_to(scheduler, fibres[thread].context);
            moved = true;
        }
        for (int warp = 0; warp < threads; warp += LANES)
            moved |= release(warp, std::min(warp + LANES, threads), AT_WARP);
        moved |= release(0, threads, AT_BLOCK);
        if (!moved) fail("a barrier was not reached by every thread of its block or warp");
    }
}

/* Every block of a grid, one after another. order: 0 as numbered, 1 backwards, else shuffled by this seed. */
inline void run_grid(Dim3 grid, int threads, int order, std::function<void()> kernel) {
    if (threads % LANES || threads > 1024 || threads < LANES) fail("blocks have whole warps, 1,024 threads at most");
    gridDim = grid;
    blockDim = {threads, 1, 1};
    body = std::move(kernel);
    fibres.resize(threads);
    for (Fibre &fibre : fibres) fibre.stack.resize(STACK);
    std::vector<int> turns(threads);
    for (int i = 0; i < threads; i++) turns[i] = order == 1 ? threads - 1 - i : i;
    uint32_t state = (uint32_t)order;
    for (int z = 0; z < grid.z; z++)
        for (int y = 0; y < grid.y; y++)
            for (int x = 0; x < grid.x; x++) {
                for (int i = threads - 1; order > 1 && i > 0; i--) {
                    state = state * 1664525u + 1013904223u;
                    std::swap(turns[i], turns[(state >> 8) % (i + 1)]);
                }
                blockIdx = {x, y, z};
                run_block(turns);
            }
}

inline float decoded_half(int bits) {
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    float size = exponent == 31 ? (fraction ? NAN : INFINITY)
               : exponent == 0  ? std::ldexp((float)fraction, -24)
                                : std::ldexp((float)(fraction | 1024), exponent - 25);
    return bits >> 15 ? -size : size;
}

inline float float_of_half(uint16_t bits) {
    static const std::vector<float> table = [] {
        std::vector<float> made(65536);
        for (int i = 0; i < 65536; i++) made[i] = decoded_half(i);
        return made;
    }();
    return table[bits];
}

/* To nearest, ties to even, as the device does. */
inline uint16_t half_of_float(float x) {
    uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    if (std::isnan(x)) return sign | 0x7e00;
    float size = std::fabs(x);
    if (size >= 65520.0f) return sign | 0x7c00;
    int exponent = size == 0.0f ? -14 : std::max(std::ilogb(size), -14);
    long steps = std::lrint(std::ldexp(size, 10 - exponent));
    return sign | (uint16_t)(steps + (exponent + 14) * 1024L);
}

} // namespace cpu

inline float __int_as_float(int bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

inline void __syncthreads() { cpu::wait(cpu::AT_BLOCK); }

inline float __shfl_xor_sync(unsigned, float x, int lane_mask) {
    cpu::Fibre &mine = cpu::fibres[cpu::running];
    int self = cpu::running, slot = mine.round++ & 1;
    mine.given[slot] = x;
    cpu::wait(cpu::AT_WARP);
    return cpu::fibres[self ^ lane_mask].given[slot];
}

namespace cpu {

/* Half `part` of word `word` of what a lane holds. */
inline float held(int lane, int slot, int word, int part) {
    return float_of_half((uint16_t)(fibres[lane].fragments[slot][word] >> 16 * part));
}

/* c [16, 8] += a [16, FEATURES] * b [FEATURES, 8] of a warp: each lane gives its words, those of a before those of b, waits
 * for the others', and sums the four products it holds, in the order of the features. */
template <int FEATURES> inline void product_of_warp(float (&c)[4], std::initializer_list<uint32_t> given) {
    Fibre &mine = fibres[running];
    int lane = running % LANES, base = running - lane, slot = mine.round++ & 1;
    std::copy(given.begin(), given.end(), mine.fragments[slot]);
    wait(AT_WARP);
    for (int part = 0; part < 4; part++) {
        int row = lane / 4 + part / 2 * 8, column = lane % 4 * 2 + part % 2;
        for (int feature = 0; feature < FEATURES; feature++) {
            int pair = feature % 8 / 2, far = feature / 8;
            float left = held(base + row % 8 * 4 + pair, slot, row / 8 + 2 * far, feature % 2);
            float right = held(base + column * 4 + pair, slot, FEATURES / 4 + far, feature % 2);
            c[part] += left * right;
        }
    }
}

} // namespace cpu

inline void mma_16_8_16(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    cpu::product_of_warp<16>(c, {a0, a1, a2, a3, b0, b1});
}
inline void mma_16_8_8(float (&c)[4], unsigned a0, unsigned a1, unsigned b0) { cpu::product_of_warp<8>(c, {a0, a1, b0}); }

#define MMA_16_8_16 mma_16_8_16
#define MMA_16_8_8 mma_16_8_8
#define HALF_TO_FLOAT(bits) cpu::float_of_half(bits)
#define FLOAT_TO_HALF(x) cpu::half_of_float(x)
