// Compiled once for each instruction set, with HOCKET_ISA its name. Includes no standard headers, and everything is
// internal: an inline function shared with other files could be linked in a version that this processor cannot run.
// (The intrinsics are inlined always, or are macros.)
//
// Written with the vectors of GCC and Clang, as long as the registers. All instruction sets compute the same bits: an
// element's result never depends on its neighbours, nothing is contracted (CMakeLists.txt), and conversions round to
// nearest even and keep subnormals. Only which NaN comes of two is up to the processor.
#include "device/kernels.h"

#ifdef __SSE2__
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

// Stores non-temporally, to an address that is a multiple of the size. An ordinary store where there is no such
// instruction.
template <class V> void stream(char* to, V v) {
#if defined(__AVX512F__)
    if constexpr (sizeof v == 64) return _mm512_stream_si512(reinterpret_cast<__m512i*>(to), __m512i(v));
#endif
#if defined(__AVX2__)
    if constexpr (sizeof v == 32) return _mm256_stream_si256(reinterpret_cast<__m256i*>(to), __m256i(v));
#endif
#if defined(__SSE2__)
    if constexpr (sizeof v == 16) return _mm_stream_si128(reinterpret_cast<__m128i*>(to), __m128i(v));
    if constexpr (sizeof v == 8) return _mm_stream_si64(reinterpret_cast<i64*>(to), i64(v));
#endif
    store(to, v);
}

// A format says how as many elements as fit in a register are read from memory (kBytes), what they are while they are
// combined, and what is stored of the result.

template <class E> struct Plain {
    using Element = E;
    using Value = Vector<E>;
    static constexpr u64 kBytes = kRegister;
    static Value read(const char* from) { return load<Value>(from); }
    static Value pack(Value v) { return v; }
};

// The upper half of a float32. A register of them is those at even places and those at odd ones, which need only be
// shifted and masked. Rounds by integers: vcvtneps2bf16 would flush subnormals.
struct Bfloat16 {
    using Element = float;
    struct Value {
        Floats even, odd;
    };
    static constexpr u64 kBytes = kRegister;
    static constexpr u32 kUpper = 0xffff0000;
    static Value read(const char* from) {
        const Words both = load<Words>(from);
        return {Floats(both << 16), Floats(both & kUpper)};
    }
    static Words pack(Value v) { return round(v.even) >> 16 | (round(v.odd) & kUpper); }
    static Words round(Floats v) {
        const Words bits = Words(v), rounded = bits + 0x7fff + (bits >> 16 & 1);
        return v == v ? rounded : bits | 0x400000;  // rounding might make a NaN an infinity
    }
};
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

struct Float16 {
    using Element = float;
    using Value = Floats;
    static constexpr u64 kBytes = kRegister / 2;
#if defined(__AVX512F__)
    static constexpr u16 kAll = 0xffff;  // masked forms, as GCC warns of its own unmasked ones
    static Value read(const char* from) { return Floats(_mm512_maskz_cvtph_ps(kAll, __m256i(load<Halves>(from)))); }
    static Halves pack(Value v) {
        return Halves(_mm512_maskz_cvtps_ph(kAll, __m512(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
#elif defined(__F16C__)
    static Value read(const char* from) { return Floats(_mm256_cvtph_ps(__m128i(load<Halves>(from)))); }
    static Halves pack(Value v) { return Halves(_mm256_cvtps_ph(__m256(v), _MM_FROUND_TO_NEAREST_INT)); }
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
    static Halves pack(Value v) {
        const Words bits = Words(v), magnitude = bits & 0x7fffffff, sign = bits >> 16 & 0x8000;
        // Below 2^-14 the last place is 2^-24, that of 0.5 in float32: adding 0.5 rounds there.
        const Words half = Words{} + (126u << 23);
        const Words small = Words(Floats(magnitude) + Floats(half)) - half;
        const Words normal = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
        const Words infinity = Words{} + 0x7c00, quiet = Words{} + 0x7e00;
        Words result = Signed(magnitude) < (113 << 23) ? small : normal;
        result = Signed(magnitude) >= 0x477ff000 ? infinity : result;  // from the middle of 65504 and 65536 on
        result = Signed(magnitude) > 0x7f800000 ? quiet : result;
        return __builtin_convertvector(result | sign, Halves);
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

// Logical operators make 0 or 1; any but 0 is true. Booleans are bytes.
struct Or {
    template <class V> static V of(V a, V b) { return (a | b) != 0 ? V{} + 1 : V{}; }
};

struct And {
    template <class V> static V of(V a, V b) { return ((a != 0) & (b != 0)) != 0 ? V{} + 1 : V{}; }
};

struct Xor {
    template <class V> static V of(V a, V b) { return ((a != 0) ^ (b != 0)) != 0 ? V{} + 1 : V{}; }
};

struct BitOr {
    template <class V> static V of(V a, V b) { return a | b; }
};

struct BitAnd {
    template <class V> static V of(V a, V b) { return a & b; }
};

struct BitXor {
    template <class V> static V of(V a, V b) { return a ^ b; }
};

// As many pairs as fit in a register, padding and all.
template <class E> struct Pairs {
    struct Element {
        E value;
        i32 index;
    };
    struct Value {
        char bytes[kRegister];
    };
    static constexpr u64 kBytes = kRegister;
    static Value read(const char* from) { return load<Value>(from); }
    static Vector<u8> pack(Value v) { return load<Vector<u8>>(v.bytes); }
};

// Of equal values the one with the lower index; a NaN goes before any number.
template <class E, bool least> struct Extreme {
    template <class V> static V of(V a, V b) {
        using Element = typename Pairs<E>::Element;
        V found;
        for (u64 at = 0; at < sizeof a; at += sizeof(Element)) {
            const auto x = load<Element>(a.bytes + at), y = load<Element>(b.bytes + at);
            const bool first = before(x.value, y.value), tied = !first && !before(y.value, x.value);
            const bool taken = first || (tied && x.index < y.index);
            __builtin_memcpy(found.bytes + at, (taken ? a : b).bytes + at, sizeof(Element));
        }
        return found;
    }
    static bool before(E a, E b) { return (least ? a < b : a > b) || (a != a && b == b); }
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

// What a combination works on at a time, an element of complex numbers being two.
template <class Type, class Op> constexpr u64 kItem =
    Type::kBytes * sizeof(typename Type::Element) / sizeof(typename Type::Value);
template <class Type> constexpr u64 kItem<Type, ComplexProd> = 2 * kItem<Type, Sum>;

template <class Op, class V> V combine(V a, V b) { return Op::of(a, b); }
template <class Op> Bfloat16::Value combine(Bfloat16::Value a, Bfloat16::Value b) {
    return {Op::of(a.even, b.even), Op::of(a.odd, b.odd)};
}

Bfloat16::Value operator*(Bfloat16::Value a, float factor) { return {a.even * factor, a.odd * factor}; }
Bfloat16::Value operator/(Bfloat16::Value a, float divisor) { return {a.even / divisor, a.odd / divisor}; }

// `last` stores what nobody reads again during the call, `write` everything else. `aligned`: where `last` stores is.
template <class Type, bool aligned> struct Whole {
    using Value = typename Type::Value;
    Value read(const char* from) const { return Type::read(from); }
    void write(char* to, Value v) const { store(to, Type::pack(v)); }
    void last(char* to, Value v) const { aligned ? stream(to, Type::pack(v)) : write(to, v); }
};

// A register's worth of elements, or the last ones, which are fewer. A register is not forwarded from two stores, of
// zeroes and of the elements: a masked load takes their place, where there is one.
template <class Type> struct Rest {
    using Value = typename Type::Value;
    u64 bytes;
    Value read(const char* from) const {
#if defined(__AVX512BW__)
        const __m512i whole = _mm512_maskz_loadu_epi8(~u64(0) >> (64 - bytes), from);
        return Type::read(reinterpret_cast<const char*>(&whole));
#else
        char whole[Type::kBytes] = {};
        __builtin_memcpy(whole, from, bytes);
        return Type::read(whole);
#endif
    }
    void write(char* to, Value v) const {
        char whole[Type::kBytes];
        store(whole, Type::pack(v));
        __builtin_memcpy(to, whole, bytes);
    }
    void last(char* to, Value v) const { write(to, v); }
};

// `step(at, span)` for bytes [at, end), fewer than two lines. Out of line: small programs are worth more here.
template <class Type, class Step> [[gnu::noinline]] void sweep_rest(u64 at, u64 end, Step step) {
    for (u64 length; at != end; at += length) {
        length = end - at < Type::kBytes ? end - at : Type::kBytes;
        step(at, Rest<Type>{length});
    }
}

// `step(at, span)` for bytes [at, end), a register's worth at a time, and `ask(at)` before each line's worth.
template <bool aligned, class Type, class Step, class Ask> void sweep_from(u64 at, u64 end, Step step, Ask ask) {
    static_assert(kCacheLine % Type::kBytes == 0);
    while (at + kCacheLine <= end) {
        ask(at);
        for (const u64 next = at + kCacheLine; at != next; at += Type::kBytes) step(at, Whole<Type, aligned>{});
    }
    for (; at + Type::kBytes <= end; at += Type::kBytes) step(at, Whole<Type, aligned>{});
    if (at != end) sweep_rest<Type>(at, end, step);
}

// The same for all bytes.
template <class Type, class Step> void sweep(u64 bytes, Step step) {
    sweep_from<false, Type>(0, bytes, step, [](u64) {});
}

// The same; after the first bytes, `to + at` is where a line begins or some registers further, and `ask(at)` is called.
template <class Type, class Step, class Ask> void sweep_lines(const char* to, u64 bytes, Step step, Ask ask) {
    const u64 before = -reinterpret_cast<u64>(to) % kCacheLine;
    const u64 at = before < bytes ? before : bytes;
    if (at != 0) sweep_rest<Type>(0, at, step);
    sweep_from<true, Type>(at, bytes, step, ask);
}

// Prefetches of operands of `bytes` bytes, so long before a sweep comes to a line. What is read goes to the
// second-level cache, as more lines can be on their way to that than to the first. What is stored to goes to the first,
// a quarter as early: it would not stay there for longer. Where `by` is 0 it is the line whose turn it is: a test would
// cost more.
struct Ahead {
    u64 bytes, by, stored_by = by / 4;
    void read(const char* from, u64 at) const { __builtin_prefetch(from + place(at + by), 0, 2); }
    void stored(char* to, u64 at) const { __builtin_prefetch(to + place(at + stored_by), 1); }
    constexpr u64 place(u64 at) const { return at < bytes ? at : bytes - 1; }
};
static_assert(Ahead{100, 8}.place(64 + 8) == 72 && Ahead{100, u64(1) << 40}.place(64 + (u64(1) << 40)) == 99);

// Of the destinations asked for those that can be stored non-temporally in one sweep: they lie as far from the
// beginning of a line as the first, a whole number of items of `item` bytes.
u32 alike(char* const* dsts, u32 m, u32 last, u64 item) {
    if (m < 32) last &= (1u << m) - 1;
    if (last == 0) return 0;
    const u64 first = reinterpret_cast<u64>(dsts[__builtin_ctz(last)]);
    if (-first % kCacheLine % item != 0) return 0;
    for (u32 i = 0; i < m && i < 32; ++i)
        if ((reinterpret_cast<u64>(dsts[i]) - first) % kCacheLine != 0) last &= ~(1u << i);
    return last;
}

// Stores `value(at, span)` to the destinations, to those in `last` non-temporally. A sweep that does so calls `ask(at)`
// for the prefetches of what the value is made of.
template <class Type, class Value, class Ask>
void spread(char* const* dsts, u32 m, u64 bytes, u32 last, Value value, Ask ask) {
    const auto step = [=](u64 at, auto span) {
        const auto found = value(at, span);
        for (u32 d = 0; d < m; ++d)
            if (d < 32 && last >> d & 1) span.last(dsts[d] + at, found);
            else span.write(dsts[d] + at, found);
    };
    if (last == 0) sweep<Type>(bytes, step);
    else sweep_lines<Type>(dsts[__builtin_ctz(last)], bytes, step, ask);
}

// The same for up to two destinations, where there is no loop in the loop.
template <class Type, class Value, class Ask>
void spread_fast(char* const* dsts, u32 m, Ahead ahead, u32 last, Value value, Ask ask) {
    const u64 bytes = ahead.bytes;
    if (m > 2) return spread<Type>(dsts, m, bytes, last, value, ask);
    char *one = dsts[last >> 1], *other = dsts[m - 1 - (last >> 1)];  // the one that is last, if any is
    const auto step = [=](u64 at, auto span) { span.last(one + at, value(at, span)); };
    const auto both = [=](u64 at, auto span) {
        const auto found = value(at, span);
        span.last(one + at, found);
        span.write(other + at, found);
    };
    const auto both_last = [=](u64 at, auto span) {
        const auto found = value(at, span);
        span.last(one + at, found);
        span.last(other + at, found);
    };
    if (last == 3) return sweep_lines<Type>(one, bytes, both_last, ask);
    if (last == 0) return m == 1 ? sweep<Type>(bytes, step) : sweep<Type>(bytes, both);
    const auto ask_other = [=](u64 at) {
        ask(at);
        ahead.stored(other, at);
    };
    m == 1 ? sweep_lines<Type>(one, bytes, step, ask) : sweep_lines<Type>(one, bytes, both, ask_other);
}

// Sources that are in no cache come sooner if all their lines are asked for at once. Long ones the core sees coming.
void prefetch_short(char* const* srcs, u32 k, u64 bytes) {
    if (bytes <= kCacheLine || bytes > kShortBytes) return;
    for (u32 s = 0; s < k; ++s)
        for (u64 at = 0; at < bytes; at += kCacheLine) __builtin_prefetch(srcs[s] + at);
}

// Whether memcpy may take ten times as long by page aliasing: glibc copies by `rep movsb`, which AMD's processors slow
// where it stores less than a line behind what it reads, modulo a page (benchmarks/results/alignment.md).
bool page_aliased(const char* to, const char* from) {
    constexpr u64 page = 4096;
    const u64 behind = (reinterpret_cast<u64>(to) - reinterpret_cast<u64>(from)) % page;
    return behind != 0 && behind < kCacheLine;
}

[[gnu::noinline]] void move_more(char* const* dsts, u32 m, char* const* srcs, u64 bytes, const Manner& asked) {
    prefetch_short(srcs, 1, bytes);
    char *from = srcs[0], *to = dsts[0];
    const u32 last = alike(dsts, m, asked.last, 1);
    const Ahead ahead{bytes, asked.ahead};
    if (last != 0 || m > 1)
        return spread_fast<Plain<u8>>(
            dsts, m, ahead, last, [=](u64 at, auto span) { return span.read(from + at); },
            [=](u64 at) { ahead.read(from, at); });
    if (to == from) return;
    const auto step = [=](u64 at, auto span) { span.write(to + at, span.read(from + at)); };
    const auto ask = [=](u64 at) {
        ahead.read(from, at);
        ahead.stored(to, at);
    };
    const auto ask_stored = [to, stored = Ahead{bytes, 0, asked.stored_ahead}](u64 at) { stored.stored(to, at); };
    if (bytes <= kShortBytes) sweep<Plain<u8>>(bytes, step);
    else if (ahead.by != 0) sweep_lines<Plain<u8>>(to, bytes, step, ask);
    else if (asked.stored_ahead != 0 || page_aliased(to, from)) sweep_lines<Plain<u8>>(to, bytes, step, ask_stored);
    else __builtin_memcpy(to, from, bytes);
}

// Apart, so that the shortest copies do not pay for what longer ones begin with.
void move(char* const* dsts, u32 m, char* const* srcs, u32, u64 bytes, const Manner& asked) {
    if (m != 1 || bytes >= kRegister) return move_more(dsts, m, srcs, bytes, asked);
    if (dsts[0] != srcs[0]) __builtin_memcpy(dsts[0], srcs[0], bytes);
}

// What is stored of a combination: itself, or a multiple, once it is rounded as if it were stored.
struct Itself {
    static constexpr bool kMoves = true;  // of one source it is a copy
    explicit Itself(const Manner&) {}
    template <class V> V of(V found) const { return found; }
};

template <class Type> struct Scaled {
    static constexpr bool kMoves = false;
    const typename Type::Element factor, divisor;
    explicit Scaled(const Manner& asked)
        : factor(typename Type::Element(asked.scale->factor)),
          divisor(typename Type::Element(asked.scale->divisor)) {}
    typename Type::Value of(typename Type::Value found) const {
        char rounded[Type::kBytes];
        store(rounded, Type::pack(found));
        return Type::read(rounded) * factor / divisor;
    }
};

// Any number of sources. Alone it is smaller than `reduce`: enough for operators that are rare.
template <class Type, class Op, class Result = Itself>
void reduce_any(char* const* dsts, u32 m, char* const* srcs, u32 k, u64 bytes, const Manner& asked) {
    if (k == 1 && Result::kMoves) return move(dsts, m, srcs, k, bytes, asked);
    prefetch_short(srcs, k, bytes);
    const Result result(asked);
    const Ahead ahead{bytes, asked.ahead};
    const auto value = [=](u64 at, auto span) {
        auto found = span.read(srcs[0] + at);
        for (u32 s = 1; s < k; ++s) found = combine<Op>(found, span.read(srcs[s] + at));
        return result.of(found);
    };
    spread<Type>(dsts, m, bytes, alike(dsts, m, asked.last, kItem<Type, Op>), value, [=](u64 at) {
        for (u32 s = 0; s < k; ++s) ahead.read(srcs[s], at);
    });
}

template <class Type, class Op, class Result = Itself>
void reduce(char* const* dsts, u32 m, char* const* srcs, u32 k, u64 bytes, const Manner& asked) {
    if (k != 2) return reduce_any<Type, Op, Result>(dsts, m, srcs, k, bytes, asked);
    prefetch_short(srcs, k, bytes);  // nearly always
    const Result result(asked);
    const u32 last = alike(dsts, m, asked.last, kItem<Type, Op>);
    const Ahead ahead{bytes, asked.ahead};
    char *a = srcs[0], *b = srcs[1];
    spread_fast<Type>(
        dsts, m, ahead, last,
        [=](u64 at, auto span) { return result.of(combine<Op>(span.read(a + at), span.read(b + at))); },
        [=](u64 at) {
            ahead.read(a, at);
            ahead.read(b, at);
        });
}

template <class Type> void average(char* const* dsts, u32 m, char* const* srcs, u32 k, u64 bytes, const Manner& asked) {
    if (asked.scale == nullptr) return reduce<Type, Sum>(dsts, m, srcs, k, bytes, asked);
    reduce<Type, Sum, Scaled<Type>>(dsts, m, srcs, k, bytes, asked);
}

// What kernels.h names for each type: the size of an element, to be compared with what it says, and the kernels of the
// operators that it has, which may be any of them.

#define HOCKET_MEMBER(name) Kernel name = nullptr;
#define HOCKET_VALUE(name) name,
struct Named {
    HOCKET_OPERATORS(HOCKET_MEMBER)
    constexpr operator TypeKernels() const { return {{HOCKET_OPERATORS(HOCKET_VALUE)}}; }
};

struct Bool {
    static constexpr u64 kElementBytes = sizeof(bool);
    static constexpr Kernel kOr = reduce<Plain<u8>, Or>, kAnd = reduce<Plain<u8>, And>, kXor = reduce<Plain<u8>, Xor>;
    static constexpr Named kKernels{.sum = kOr,
                                    .prod = kAnd,
                                    .min = kAnd,
                                    .max = kOr,
                                    .band = kAnd,
                                    .bor = kOr,
                                    .bxor = kXor,
                                    .land = kAnd,
                                    .lor = kOr,
                                    .lxor = kXor};
};

// Sums and products wrap, which only unsigned ones may.
template <class E, class U> struct Integer {
    static constexpr u64 kElementBytes = sizeof(E);
    static constexpr Named kKernels{.sum = reduce<Plain<U>, Sum>,
                                    .prod = reduce<Plain<U>, Prod>,
                                    .min = reduce<Plain<E>, Min>,
                                    .max = reduce<Plain<E>, Max>,
                                    .band = reduce<Plain<u8>, BitAnd>,
                                    .bor = reduce<Plain<u8>, BitOr>,
                                    .bxor = reduce<Plain<u8>, BitXor>,
                                    .land = reduce_any<Plain<U>, And>,
                                    .lor = reduce_any<Plain<U>, Or>,
                                    .lxor = reduce_any<Plain<U>, Xor>};
};

template <class Type> struct Float {
    static constexpr u64 kElementBytes = kItem<Type, Sum>;
    static constexpr Named kKernels{.sum = reduce<Type, Sum>,
                                    .prod = reduce<Type, Prod>,
                                    .min = reduce<Type, Min>,
                                    .max = reduce<Type, Max>,
                                    .avg = average<Type>};
};

template <class E> struct Complex {
    static constexpr u64 kElementBytes = 2 * sizeof(E);
    static constexpr Named kKernels{
        .sum = reduce<Plain<E>, Sum>, .prod = reduce<Plain<E>, ComplexProd>, .avg = average<Plain<E>>};
};

template <class E> struct Pair {
    static constexpr u64 kElementBytes = sizeof(typename Pairs<E>::Element);
    static constexpr Named kKernels{.minloc = reduce_any<Pairs<E>, Extreme<E, true>>,
                                    .maxloc = reduce_any<Pairs<E>, Extreme<E, false>>};
};

#define HOCKET_CHECK(name, bytes, ...) static_assert((__VA_ARGS__::kElementBytes) == bytes, #name);
HOCKET_TYPES(HOCKET_CHECK)

}  // namespace

#define HOCKET_KERNELS(name, bytes, ...) __VA_ARGS__::kKernels,
#define HOCKET_TABLE_(isa) kernels_##isa
#define HOCKET_TABLE(isa) HOCKET_TABLE_(isa)
extern const KernelTable HOCKET_TABLE(HOCKET_ISA);
constexpr KernelTable HOCKET_TABLE(HOCKET_ISA) = {{HOCKET_TYPES(HOCKET_KERNELS)}, move};

}  // namespace hocket
