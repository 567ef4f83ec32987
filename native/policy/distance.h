// Whether another rank's core shares a cache with this one, to go by how long it takes to load a line that it has just
// stored. Where they share none, messages are better stored non-temporally: from the cache of such a core each line
// comes slowly, from memory they come as a stream (benchmarks/results/distance.md). In a Broadcast it is faster still
// to have the kernel copy once (select.h: least_attached).
#pragma once

#include <algorithm>

#include "protocol/header.h"

namespace hocket {

constexpr u32 kLooksThatCount = 3;

class Distance {
  public:
    // Whose line a rank looks at that has looked so often: another each time. Ranks that have looked as often look at
    // different lines: one on the same core could have brought it there.
    static u32 whose(u64 looks, u32 rank, u32 size) { return u32((rank + 1 + looks % (size - 1)) % size); }

    void found(bool far) { far_ = far ? std::min(far_ + 1, kLooksThatCount) : std::max(far_, 1u) - 1; }
    bool far() const { return 2 * far_ > kLooksThatCount; }

  private:
    u32 far_ = 0;  // looks that found so, less the others, within bounds
};

}  // namespace hocket
