// Copies from and to the memory of another process, by the kernel (process_vm_readv(2)), and kernel calls on it.
//
// One copy, where a message through slots takes two, and no line is stored to that another core has just read. It costs
// a system call, and something for each page, and only moves: what is combined is copied to a cache first.
#pragma once

#include <sys/types.h>
#include <cerrno>
#include <cstdlib>
#include <memory>

#include "core/interpreter.h"
#include "device/kernels.h"
#include "transport/memory.h"

namespace hocket {

constexpr u64 kCmaBlocks = 256 << 10;  // bytes for what is fetched to be combined

// Where in this process others find a word by which they know that they may look there.
u64 witness_place();
// Whether this process may read the word of another, which has it at that place, and store it there again.
bool may_access(pid_t process, u64 place);

// Return 0 or an errno.
int pull_from(pid_t process, const char* theirs, char* mine, u64 bytes);
int push_to(pid_t process, char* theirs, const char* mine, u64 bytes);

// Of a thread, on private memory of other ranks.
class CmaCopies {
  public:
    explicit CmaCopies(Memory& memory)
        : memory_(memory),
          blocks_(static_cast<char*>(std::aligned_alloc(kPage, kCmaBlocks)), &std::free) {
        if (blocks_ == nullptr) throw std::bad_alloc();
    }

    // As a kernel call on operands of `room`, of which the first are sources. What is to be combined is fetched to
    // blocks that stay in a cache, block by block. Adds what is copied on the way to `moved` too. Does nothing after a
    // failure.
    void reduce(Kernel kernel, const Manner& how, const Room& room, u32 sources, u32 used, u64 bytes, Traffic& moved);

    // Fails, as that rank has ended.
    void lose(u32 rank) {
        error_ = ESRCH;
        rank_ = rank;
    }

    // Why it failed, and with whose memory: an errno, 0 if it has not.
    int error() const { return error_; }
    u32 rank() const { return rank_; }

  private:
    void note(u32 rank, int error, u64 bytes, Traffic& moved) {  // of a copy
        error_ = error;
        rank_ = rank;
        moved.loaded += bytes;
        moved.stored += bytes;
    }

    Memory& memory_;
    std::unique_ptr<char, decltype(&std::free)> blocks_;
    int error_ = 0;
    u32 rank_ = 0;
};

}  // namespace hocket
