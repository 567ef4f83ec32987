// Kernels: dsts = reduce(srcs), over any number of sources and destinations.
#pragma once

#include "../core/plan.h"

namespace hocket {

constexpr u32 kTypes = 4, kOperators = 3;
constexpr const char* kTypeNames[kTypes] = {"float32", "float64", "int32", "int64"};
constexpr u32 kTypeBytes[kTypes] = {4, 8, 4, 8};
constexpr const char* kOperatorNames[kOperators] = {"sum", "min", "max"};

// Combines `k` sources element by element, in their order, and stores the result to `m` destinations. A destination may
// be the very place of a source; otherwise they do not overlap. Integers wrap; min and max propagate NaN as NumPy does.
using Kernel = void (*)(char* const* dsts, u32 m, char* const* srcs, u32 k, u64 bytes);

struct KernelTable {
    Kernel reduce[kTypes][kOperators];
};

// The table for the processor this runs on. All of them compute the same bits.
const KernelTable& kernels();

}  // namespace hocket
