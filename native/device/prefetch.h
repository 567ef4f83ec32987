// How far ahead kernels ask for what they read and store, and how much they take at a time (policy/tunables.def).
#pragma once

#include "core/plan.h"

namespace hocket {

// How many bytes before it is its turn a line is asked for, and to which caches it comes if it is read. Left to itself,
// a core that streams from memory waits for fewer lines at once; the second cache can wait for more of them than the
// first. Near: what is stored through the caches, and short copies. Far: non-temporal stores, and long copies; these
// ask for what they store to later, so that it is still there.
struct Near {
    static constexpr u64 kToRead = 2 << 10, kToStore = 2 << 10;
    static constexpr int kCaches = 3;  // all
};
struct Far {
    static constexpr u64 kToRead = 4 << 10, kToStore = 1 << 10;
    static constexpr int kCaches = 2;  // from the second on
};

constexpr u64 kUnasked = 128;         // bytes whose turn it is at once: no use to ask for the first
constexpr u64 kCopyBlock = 12 << 10;  // stays in the first-level cache, and is long enough for memcpy's best way
constexpr u64 kShortCopy = 4 << 10;   // up to here memcpy has no way that is better than line by line

}  // namespace hocket
