// Compiled once for each instruction set, with HOCKET_ISA its name. Includes no standard headers, and everything is
// internal: an inline function shared with other files could be linked in a version that this processor cannot run.
#include "kernels.h"

namespace hocket {
namespace {

struct Sum {
    static float of(float a, float b) { return a + b; }
    static double of(double a, double b) { return a + b; }
    static int of(int a, int b) { return int(unsigned(a) + unsigned(b)); }
    static long long of(long long a, long long b) { return (long long)(u64(a) + u64(b)); }
};

// A NaN on either side is the result: `a != a` keeps the first, the comparison being false keeps the second.
struct Min {
    template <class T> static T of(T a, T b) { return (a < b) | (a != a) ? a : b; }
};

struct Max {
    template <class T> static T of(T a, T b) { return (a > b) | (a != a) ? a : b; }
};

// One pass of two sources. A destination is a source or apart from it, so no iteration depends on another.
template <class T, class Op> void two_to_one(T* d, const T* a, const T* b, u64 n) {
#pragma GCC ivdep
    for (u64 i = 0; i < n; ++i) d[i] = Op::of(a[i], b[i]);
}

template <class T, class Op> void two_to_two(T* d, T* e, const T* a, const T* b, u64 n) {
#pragma GCC ivdep
    for (u64 i = 0; i < n; ++i) d[i] = e[i] = Op::of(a[i], b[i]);
}

constexpr u64 kBlock = 4096;  // bytes that stay in the first-level cache between passes

void copy(char* const* dsts, u32 m, const char* src, u64 at, u64 bytes) {
    for (u32 d = 0; d < m; ++d)
        if (dsts[d] + at != src) __builtin_memcpy(dsts[d] + at, src, bytes);
}

template <class T, class Op> void reduce(char* const* dsts, u32 m, char* const* srcs, u32 k, u64 bytes) {
    if (k == 1 && m == 1) return copy(dsts, 1, srcs[0], 0, bytes);
    if (k == 2 && m <= 2) {
        T *a = reinterpret_cast<T*>(srcs[0]), *b = reinterpret_cast<T*>(srcs[1]);
        T *d = reinterpret_cast<T*>(dsts[0]), *e = reinterpret_cast<T*>(dsts[m - 1]);
        return m == 1 ? two_to_one<T, Op>(d, a, b, bytes / sizeof(T)) : two_to_two<T, Op>(d, e, a, b, bytes / sizeof(T));
    }
    for (u64 at = 0; at < bytes; at += kBlock) {
        const u64 part = bytes - at < kBlock ? bytes - at : kBlock;
        if (k == 1) {
            copy(dsts, m, srcs[0] + at, at, part);
            continue;
        }
        alignas(64) T sum[kBlock / sizeof(T)];
        const T* left = reinterpret_cast<const T*>(srcs[0] + at);
        for (u32 s = 1; s < k; ++s, left = sum)
            two_to_one<T, Op>(sum, left, reinterpret_cast<const T*>(srcs[s] + at), part / sizeof(T));
        copy(dsts, m, reinterpret_cast<const char*>(sum), at, part);
    }
}

}  // namespace

#define HOCKET_TABLE_(isa) kernels_##isa
#define HOCKET_TABLE(isa) HOCKET_TABLE_(isa)
#define HOCKET_ROW(T) {reduce<T, Sum>, reduce<T, Min>, reduce<T, Max>}
extern const KernelTable HOCKET_TABLE(HOCKET_ISA);
const KernelTable HOCKET_TABLE(HOCKET_ISA) = {
    {HOCKET_ROW(float), HOCKET_ROW(double), HOCKET_ROW(int), HOCKET_ROW(long long)}};

}  // namespace hocket
