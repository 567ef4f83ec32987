// What the caches of this machine hold.
#pragma once

#include <algorithm>
#include <string>

#include "core/plan.h"

namespace hocket {

// Those of the second and of the third level: the bytes of one, and how many there are.
struct Caches {
    struct Level {
        u64 bytes, instances;
    } second, third;

    // What those of so many ranks hold together (YHCCL, section 4).
    u64 bytes(u32 ranks) const {
        return second.bytes * std::min<u64>(ranks, second.instances) +
               third.bytes * std::min<u64>(ranks, third.instances);
    }
};

// Those of so many processors, all taken to be like cpu0 below `cpus`, a folder as /sys/devices/system/cpu.
Caches find_caches(u64 processors, const std::string& cpus);

}  // namespace hocket
