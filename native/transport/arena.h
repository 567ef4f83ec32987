// The arena: memory of a process that other ranks read and write in place.
//
// One file without a name, mapped extent by extent as it is needed; an extent is never moved, and no smaller than all
// before it together where there is address space for that, so there are few. What is free lies in a list in order of
// place, of which the first that is long enough is taken: so the file stays short, and so does what others map of it.
// Memory that was used stays the arena's. It has huge pages wherever the kernel gives them, whatever its setting for
// shared memory: they take a rank less time to get than small ones, and other ranks next to none to map.
//
// Used under the GIL only, but for what says otherwise.
#pragma once

#include <map>
#include <mutex>
#include <new>
#include <vector>

#include "transport/memory.h"

namespace hocket {

constexpr u64 kFirstExtent = 16 << 20;  // bytes of address space; all further ones double the whole

class Arena {
  public:
    // Takes the descriptor over.
    explicit Arena(int descriptor) : descriptor_(descriptor) {}
    ~Arena();

    int descriptor() const { return descriptor_; }

    // Whole pages, with memory behind them. Null, with errno, where there are none.
    char* allocate(u64 bytes);
    void release(char* at, u64 bytes);

    // Where in the file an address lies; kNowhere for any other. Any thread may ask for memory that it holds.
    u64 place(const char* at) const;

    // Never gives away again what was allocated around that place: a rank that is late may still access it. Any thread.
    void keep(u64 place) {
        const std::lock_guard<std::mutex> held(keeping_);
        kept_.push_back(place);
    }

    // In a child after fork: what was allocated is the child's own from here on, and nothing more can be.
    void forked();

  private:
    struct Extent {
        char* base;
        u64 place;
        u64 bytes;
        u64 backed;  // so many of them have memory
    };

    bool grow(u64 bytes);
    int back(Extent& extent, u64 end);
    Extent& extent_of(u64 place);

    static constexpr u64 kMostExtents = 48;  // each doubles the whole

    int descriptor_;
    bool collapses_ = true;  // as far as is known, small pages can be made huge ones
    Extent extents_[kMostExtents]{};
    u64 extended_ = 0;         // how many there are: stored after the extent
    std::map<u64, u64> free_;  // place and bytes; not joined across extents
    std::mutex keeping_;
    std::vector<u64> kept_;
};

// An array's memory in an arena.
class Loan {
  public:
    // Throws std::bad_alloc.
    Loan(Arena& arena, u64 bytes) : arena_(arena), bytes_(bytes), at_(arena.allocate(bytes)) {
        if (at_ == nullptr) throw std::bad_alloc();
    }
    ~Loan() {
        if (arena_.place(at_) != kNowhere) arena_.release(at_, bytes_);  // not in a child after fork
    }
    Loan& operator=(Loan&&) = delete;
    char* data() const { return at_; }
    u64 bytes() const { return bytes_; }

  private:
    Arena& arena_;
    u64 bytes_;
    char* at_;
};

}  // namespace hocket
