// Copies from and to the memory of another process, by the kernel (process_vm_readv(2)).
#pragma once

#include <sys/types.h>

#include "core/plan.h"

namespace hocket {

constexpr u64 kCmaBlocks = 256 << 10;  // bytes for what is fetched to be combined (runtime/cma_copies.h)

// Return 0 or an errno.
int pull_from(pid_t process, const char* theirs, char* mine, u64 bytes);
int push_to(pid_t process, char* theirs, const char* mine, u64 bytes);

}  // namespace hocket
