// Kernels: dsts = reduce(srcs), over any number of sources and destinations.
#pragma once

#include <string_view>

#include "core/plan.h"

namespace hocket {

// Bytes that were read from sources and written to destinations: k and m times those of a kernel call.
struct Traffic {
    u64 loaded;
    u64 stored;
};

// The element types: name, size in bytes, and the class of kernels.cpp that has its kernels. Names are NumPy's, for
// bfloat16 that of ml_dtypes and torch; those of two are structures of a value and its index, laid out as in C.
// clang-format off
#define HOCKET_TYPES(X) \
    X(bool, 1, Bool) \
    X(int8, 1, Integer<i8, u8>) \
    X(int16, 2, Integer<i16, u16>) \
    X(int32, 4, Integer<i32, u32>) \
    X(int64, 8, Integer<i64, u64>) \
    X(uint8, 1, Integer<u8, u8>) \
    X(uint16, 2, Integer<u16, u16>) \
    X(uint32, 4, Integer<u32, u32>) \
    X(uint64, 8, Integer<u64, u64>) \
    X(float16, 2, Float<Float16>) \
    X(bfloat16, 2, Float<Bfloat16>) \
    X(float32, 4, Float<Plain<float>>) \
    X(float64, 8, Float<Plain<double>>) \
    X(complex64, 8, Complex<float>) \
    X(complex128, 16, Complex<double>) \
    X(float32_int32, 8, Pair<float>) \
    X(float64_int32, 16, Pair<double>) \
    X(int64_int32, 16, Pair<i64>) \
    X(int32_int32, 8, Pair<i32>) \
    X(int16_int32, 8, Pair<i16>)
#define HOCKET_OPERATORS(X) \
    X(sum) X(prod) X(min) X(max) X(avg) X(band) X(bor) X(bxor) X(land) X(lor) X(lxor) X(minloc) X(maxloc)
// clang-format on

#define HOCKET_COUNT(...) +1
#define HOCKET_NAME(name, ...) #name,
#define HOCKET_BYTES(name, bytes, ...) bytes,
#define HOCKET_OPERATOR(name) name,
constexpr u32 kTypes = HOCKET_TYPES(HOCKET_COUNT), kOperators = HOCKET_OPERATORS(HOCKET_COUNT);
constexpr const char* kTypeNames[kTypes] = {HOCKET_TYPES(HOCKET_NAME)};
constexpr u32 kTypeBytes[kTypes] = {HOCKET_TYPES(HOCKET_BYTES)};
constexpr const char* kOperatorNames[kOperators] = {HOCKET_OPERATORS(HOCKET_NAME)};
enum class Operator : u32 { HOCKET_OPERATORS(HOCKET_OPERATOR) };
constexpr u32 kAverage = u32(Operator::avg);
#undef HOCKET_COUNT
#undef HOCKET_NAME
#undef HOCKET_BYTES
#undef HOCKET_OPERATOR

// The number of a type; kTypes where there is none of this name.
constexpr u32 type_code(std::string_view name) {
    u32 code = 0;
    while (code < kTypes && name != kTypeNames[code]) ++code;
    return code;
}

// A call that only moves data has elements of any size: the numbers from kTypes on are those of opaque elements of
// 0, 1, 2 ... bytes.
constexpr u64 type_bytes(u32 type) { return type < kTypes ? kTypeBytes[type] : type - kTypes; }

constexpr u64 kShortBytes = 4 << 10;  // up to which sources are prefetched whole, and memcpy is no better

// What a sum, rounded to its type, is multiplied by and then divided by, before it is rounded again.
struct Scale {
    double factor = 1;
    u32 divisor = 1;
};

// How a kernel works. `last`: a set of destinations, bit d for the d-th, that are stored non-temporally as far as their
// alignment allows. `ahead`: bytes by which such sweeps, and long copies to one destination, prefetch lines before it
// is their turn; 0: they do not. `stored_ahead`: the same of what a long copy stores, where `ahead` is 0; if it is 0,
// too, memcpy copies. `scale`, of an average: null for the sum itself.
struct Manner {
    u32 last = 0;
    u64 ahead = 0;
    u64 stored_ahead = 0;
    const Scale* scale = nullptr;
};

// Combines `k` sources element by element, in their order, and stores the result to `m` destinations. A destination may
// be the very place of a source; otherwise they do not overlap. The meaning is that of hocket/semantics.py.
//
// Non-temporal stores are ordered with nothing until the thread has drained them (runtime/cpu.h). The bits are the
// same.
using Kernel = void (*)(char* const* dsts, u32 m, char* const* srcs, u32 k, u64 bytes, const Manner& how);

// The kernels of a type, by operator. Null: it has no such operator.
struct TypeKernels {
    Kernel reduce[kOperators];
};

struct KernelTable {
    TypeKernels types[kTypes];
    Kernel move;  // of one source, of whatever type
};

// The kernels for one instruction set.
struct Isa {
    const char* name;
    const KernelTable* kernels;
};

// Those that this processor can run, the best one first. Ends with a null name. All of them compute the same bits.
const Isa* isas();

// The one in use: the best one, or that which the environment variable HOCKET_ISA names. Null if it names none of them.
const Isa* chosen_isa();

// The table in use; chosen_isa() is not null.
inline const KernelTable& kernels() {
    static const KernelTable& chosen = *chosen_isa()->kernels;
    return chosen;
}

// memcpy, but for where page aliasing makes that of the system slow (`move`).
inline void copy(char* to, const char* from, u64 bytes) {
    char* source = const_cast<char*>(from);
    kernels().move(&to, 1, &source, 1, bytes, {});
}

}  // namespace hocket
