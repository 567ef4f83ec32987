// A hash of words, the same on all ranks.
#pragma once

#include "core/plan.h"

namespace hocket {

// SplitMix64 (Steele, Lea and Flood, OOPSLA'14).
inline u64 mix(u64 x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

}  // namespace hocket
