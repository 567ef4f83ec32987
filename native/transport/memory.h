// Shared memory, of processes or, in tests, of threads: the control region, a window of slots for every connection,
// arenas that all map, and copies from and to private memory. Not what other transports look like (core/port.h).
#pragma once

#include "protocol/header.h"
#include "transport/fifo.h"

namespace hocket {

constexpr u64 kPage = 4096;
constexpr u64 kWindowStride = u64(1) << 30;  // the most a window can hold

struct Window {
    Counters* counters = nullptr;  // slots follow on the next page
    u64 bytes = 0;
    u64 passed = 0;  // of a multicast: messages so far, whether or not this rank read them
    char* slots() const { return reinterpret_cast<char*>(counters) + kPage; }
};

class Memory {
  public:
    virtual ~Memory() = default;
    virtual RankBlock* control() = 0;
    // The window of a connection. It keeps its address as an object; `reserve` fills it.
    virtual Window* window(u32 source, u32 destination, u32 channel) = 0;
    // Makes the window hold `bytes` of slots. Returns 0 or an errno.
    virtual int reserve(Window* window, u64 bytes) = 0;
    // Memory that all ranks share, `bytes` of each rank one after the other, of which those of this `rank` can be used
    // now. All ask for as many. Null, with errno, where there is none.
    virtual char* rotated(u32 rank, u64 bytes) = 0;
    // Where in this rank's arena an address lies, or kNowhere. Memory that it has adopted has places of the arena that
    // no other memory ever gets.
    virtual u64 place(const char* at) const = 0;
    // After a call that failed: others may still access what lies at this place of this rank's arena.
    virtual void keep(u64 place) = 0;
    // The arena of another rank, of which the first `bytes` can be used until this is called again. Null, with errno,
    // where it cannot be mapped.
    virtual char* arena(u32 rank, u64 bytes) = 0;
    // What another rank has adopted, at a place of its arena. Null for kNowhere.
    virtual char* adopted(u32 rank, u64 place) const = 0;
    // Copies from, or to, memory of another rank that is in no arena. Returns 0 or an errno.
    virtual int pull(u32 rank, const char* theirs, char* mine, u64 bytes) = 0;
    virtual int push(u32 rank, char* theirs, const char* mine, u64 bytes) = 0;
    // Whether the kernel can copy from and to the mapping of this rank in which an address lies, as it cannot where a
    // device's memory is mapped, and whether this rank may still make such copies.
    virtual bool reachable(const char* mine) const = 0;
    // Whether it is known to lie in huge pages.
    virtual bool in_huge_pages(const char* mine, u64 bytes) = 0;
    // Whether this rank's process is still open to others, as it was when the ranks met.
    virtual bool is_accessible() const = 0;
};

}  // namespace hocket
