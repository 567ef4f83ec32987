// Compiled once for each instruction set, with HOCKET_ISA its name. Includes no standard headers, and everything is
// internal: an inline function shared with other files could be linked in a version that this processor cannot run.
// (The intrinsics are inlined always, or are macros.)
//
// Written with the vectors of GCC and Clang, as long as the registers. All instruction sets compute the same bits: an
// element's result never depends on its neighbours, nothing is contracted (CMakeLists.txt), and conversions round to
// nearest even and keep subnormals. Only which NaN comes of two is up to the processor.
#include "kernels.h"

#ifdef __F16C__
#include <immintrin.h>
#endif

namespace hocket {
namespace {

#if defined(__AVX512F__)
constexpr u64 kRegister = 64;
#elif defined(__AVX2__)
constexpr u64 kRegister = 32;
#else
constexpr u64 kRegister = 16;
#endif

using u8 = unsigned char;
using u16 = unsigned short;
using i8 = signed char;
using i16 = short;
using i32 = int;
using i64 = long long;

template <class E, u64 bytes> struct VectorOf {
    typedef E Type __attribute__((vector_size(bytes)));
};
template <class E> using Vector = typename VectorOf<E, kRegister>::Type;
using Floats = Vector<float>;
using Words = Vector<u32>;                          // the bits of Floats
using Signed = Vector<int>;                         // the same, for comparisons: SSE2 has none of unsigned words
using Halves = VectorOf<u16, kRegister / 2>::Type;  // as many

template <class V> V load(const char* from) {
    V v;
    __builtin_memcpy(&v, from, sizeof v);
    return v;
}

template <class V> void store(char* to, V v) { __builtin_memcpy(to, &v, sizeof v); }

// A type says how as many elements as fit in a register are read from memory, what they are while they are combined,
// and how the result is written.

template <class E> struct Plain {
    using Element = E;
    using Value = Vector<E>;
    static constexpr u64 kBytes = kRegister;
    static Value read(const char* from) { return load<Value>(from); }
    static void write(char* to, Value v) { store(to, v); }
};

// The upper half of a float32. Rounds by integers: vcvtneps2bf16 would flush subnormals.
struct Bfloat16 {
    using Element = float;
    using Value = Floats;
    static constexpr u64 kBytes = kRegister / 2;
    static Value read(const char* from) { return Floats(__builtin_convertvector(load<Halves>(from), Words) << 16); }
    static void write(char* to, Value v) {
        const Words bits = Words(v), rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        const Words quiet = bits >> 16 | 0x40;  // rounding might make a NaN an infinity
        store(to, __builtin_convertvector(v == v ? rounded : quiet, Halves));
    }
};

struct Float16 {
    using Element = float;
    using Value = Floats;
    static constexpr u64 kBytes = kRegister / 2;
#if defined(__AVX512F__)
    static constexpr u16 kAll = 0xffff;  // masked forms, as GCC warns of its own unmasked ones
    static Value read(const char* from) { return Floats(_mm512_maskz_cvtph_ps(kAll, __m256i(load<Halves>(from)))); }
    static void write(char* to, Value v) {
        store(to, Halves(_mm512_maskz_cvtps_ph(kAll, __m512(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)));
    }
#elif defined(__F16C__)
    static Value read(const char* from) { return Floats(_mm256_cvtph_ps(__m128i(load<Halves>(from)))); }
    static void write(char* to, Value v) {
        store(to, Halves(_mm256_cvtps_ph(__m256(v), _MM_FROUND_TO_NEAREST_INT)));
    }
#else
    static Value read(const char* from) {
        const Words half = __builtin_convertvector(load<Halves>(from), Words);
        const Words magnitude = (half & 0x7fff) << 13, sign = (half & 0x8000) << 16;
        // The exponent's bias is 15 in one and 127 in the other. A subnormal has no leading one: 2^-14 puts one there,
        // is taken away again, and both are exact.
        const Words leading = Words{} + (113u << 23);
        const Words small = Words(Floats(magnitude + leading) - Floats(leading));
        const Words scaled = magnitude + (112u << 23), special = magnitude | 0x7f800000;
        const Words normal = Signed(magnitude) >= 0x0f800000 ? special : scaled;
        return Floats((Signed(magnitude) < 0x00800000 ? small : normal) | sign);
    }
    static void write(char* to, Value v) {
        const Words bits = Words(v), magnitude = bits & 0x7fffffff, sign = bits >> 16 & 0x8000;
        // Below 2^-14 the last place is 2^-24, that of 0.5 in float32: adding 0.5 rounds there.
        const Words half = Words{} + (126u << 23);
        const Words small = Words(Floats(magnitude) + Floats(half)) - half;
        const Words normal = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
        const Words infinity = Words{} + 0x7c00, quiet = Words{} + 0x7e00;
        Words result = Signed(magnitude) < (113 << 23) ? small : normal;
        result = Signed(magnitude) >= 0x477ff000 ? infinity : result;  // from the middle of 65504 and 65536 on
        result = Signed(magnitude) > 0x7f800000 ? quiet : result;
        store(to, __builtin_convertvector(result | sign, Halves));
    }
#endif
};

struct Sum {
    template <class V> static V of(V a, V b) { return a + b; }
};

struct Prod {
    template <class V> static V of(V a, V b) { return a * b; }
};

// A NaN on either side is the result: `a != a` keeps the first, the comparison being false keeps the second.
struct Min {
    template <class V> static V of(V a, V b) { return (a < b) | (a != a) ? a : b; }
};

struct Max {
    template <class V> static V of(V a, V b) { return (a > b) | (a != a) ? a : b; }
};

// Booleans are bytes; any but 0 is true.
struct Or {
    template <class V> static V of(V a, V b) { return (a | b) != 0 ? V{} + 1 : V{}; }
};

struct And {
    template <class V> static V of(V a, V b) { return ((a != 0) & (b != 0)) != 0 ? V{} + 1 : V{}; }
};

// Real and imaginary parts take turns. The sign is flipped as a bit: GCC 12 would contract a subtraction and an
// addition side by side to one fused operation (vfmaddsub), whatever -ffp-contract says.
struct ComplexProd {
    template <class V> static V of(V a, V b) {
        using Bits = decltype(a < b);
        constexpr u32 lanes = sizeof(V) / sizeof(a[0]);
        V real, imaginary, turned;
        Bits sign{};
        for (u32 i = 0; i < lanes; ++i) {
            real[i] = a[i & ~1u];
            imaginary[i] = a[i | 1];
            turned[i] = b[i ^ 1];
            if (i % 2 == 0) sign[i] = Bits(-V{})[i];
        }
        return real * b + V(Bits(imaginary * turned) ^ sign);
    }
};

template <class Type> struct Whole {
    typename Type::Value read(const char* from) const { return Type::read(from); }
    void write(char* to, typename Type::Value v) const { Type::write(to, v); }
};

// The last elements, fewer than a register holds.
template <class Type> struct Rest {
    u64 bytes;
    typename Type::Value read(const char* from) const {
        char whole[Type::kBytes] = {};
        __builtin_memcpy(whole, from, bytes);
        return Type::read(whole);
    }
    void write(char* to, typename Type::Value v) const {
        char whole[Type::kBytes];
        Type::write(whole, v);
        __builtin_memcpy(to, whole, bytes);
    }
};

// `step(at, span)` for each register's worth of elements.
template <class Type, class Step> void sweep(u64 bytes, Step step) {
    u64 at = 0;
    for (; at + Type::kBytes <= bytes; at += Type::kBytes) step(at, Whole<Type>{});
    if (at != bytes) step(at, Rest<Type>{bytes - at});
}

constexpr u64 kBlock = 4096;  // bytes that stay in the first-level cache from one destination to the next

void move(char* const* dsts, u32 m, char* const* srcs, u32, u64 bytes) {
    const u64 step = m == 1 ? bytes : kBlock;
    for (u64 at = 0; at < bytes; at += step)
        for (u32 d = 0; d < m; ++d)
            if (dsts[d] != srcs[0]) __builtin_memcpy(dsts[d] + at, srcs[0] + at, bytes - at < step ? bytes - at : step);
}

template <class Type, class Op> void reduce(char* const* dsts, u32 m, char* const* srcs, u32 k, u64 bytes) {
    if (k == 1) return move(dsts, m, srcs, k, bytes);
    if (k == 2 && m <= 2) {  // nearly always
        char *a = srcs[0], *b = srcs[1], *d = dsts[0], *e = dsts[m - 1];
        if (m == 1)
            return sweep<Type>(bytes, [=](u64 at, auto span) {
                span.write(d + at, Op::of(span.read(a + at), span.read(b + at)));
            });
        return sweep<Type>(bytes, [=](u64 at, auto span) {
            const auto value = Op::of(span.read(a + at), span.read(b + at));
            span.write(d + at, value);
            span.write(e + at, value);
        });
    }
    sweep<Type>(bytes, [=](u64 at, auto span) {
        auto value = span.read(srcs[0] + at);
        for (u32 s = 1; s < k; ++s) value = Op::of(value, span.read(srcs[s] + at));
        for (u32 d = 0; d < m; ++d) span.write(dsts[d] + at, value);
    });
}

template <class Type> void divide(char* data, u64 bytes, u32 p) {
    const typename Type::Element divisor(p);
    sweep<Type>(bytes, [=](u64 at, auto span) { span.write(data + at, span.read(data + at) / divisor); });
}

}  // namespace

// Sums and products of integers wrap, which only unsigned ones may.
#define HOCKET_ROW_BOOL \
    {reduce<Plain<u8>, Or>, reduce<Plain<u8>, And>, reduce<Plain<u8>, And>, reduce<Plain<u8>, Or>, nullptr}
#define HOCKET_ROW_INTEGER(E, U) \
    {reduce<Plain<U>, Sum>, reduce<Plain<U>, Prod>, reduce<Plain<E>, Min>, reduce<Plain<E>, Max>, nullptr}
#define HOCKET_ROW_FLOAT(Type) \
    {reduce<Type, Sum>, reduce<Type, Prod>, reduce<Type, Min>, reduce<Type, Max>, reduce<Type, Sum>}
#define HOCKET_ROW_COMPLEX(E) \
    {reduce<Plain<E>, Sum>, reduce<Plain<E>, ComplexProd>, nullptr, nullptr, reduce<Plain<E>, Sum>}

#define HOCKET_TABLE_(isa) kernels_##isa
#define HOCKET_TABLE(isa) HOCKET_TABLE_(isa)
extern const KernelTable HOCKET_TABLE(HOCKET_ISA);
const KernelTable HOCKET_TABLE(HOCKET_ISA) = {
    {HOCKET_ROW_BOOL, HOCKET_ROW_INTEGER(i8, u8), HOCKET_ROW_INTEGER(i16, u16), HOCKET_ROW_INTEGER(i32, u32),
     HOCKET_ROW_INTEGER(i64, u64), HOCKET_ROW_INTEGER(u8, u8), HOCKET_ROW_INTEGER(u16, u16),
     HOCKET_ROW_INTEGER(u32, u32), HOCKET_ROW_INTEGER(u64, u64), HOCKET_ROW_FLOAT(Float16), HOCKET_ROW_FLOAT(Bfloat16),
     HOCKET_ROW_FLOAT(Plain<float>), HOCKET_ROW_FLOAT(Plain<double>), HOCKET_ROW_COMPLEX(float),
     HOCKET_ROW_COMPLEX(double)},
    {nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, divide<Float16>, divide<Bfloat16>,
     divide<Plain<float>>, divide<Plain<double>>, divide<Plain<float>>, divide<Plain<double>>},
    move};

}  // namespace hocket
