// What the caches of this machine hold, for the MPI library; runtime/machine.py has the same for Python.
#pragma once

#include <string>

#include "core/plan.h"

namespace hocket {

// Bytes that the caches of the second and third level of so many ranks hold together (YHCCL, section 4), of so many
// processors, all taken to be like cpu0 below `cpus`, a folder as /sys/devices/system/cpu.
u64 cache_bytes(u32 ranks, u64 processors, const std::string& cpus);

}  // namespace hocket
