// Pages of files that ranks map: sizes, backing with memory, mapping at huge pages.
#pragma once

#include "transport/memory.h"

namespace hocket {

constexpr u64 kHugePage = 2 << 20;
constexpr u64 kMostWindows = u64(1) << 24;
constexpr u64 kFileBytes = (kMostWindows + 1) * kWindowStride;  // of a file that ranks share, sparse

u64 whole_pages(u64 bytes);

// Makes sure that the pages are there: a full memory is an error now rather than a SIGBUS later. Not posix_fallocate,
// which writes to the pages where the file system cannot do it, while another rank does. Returns 0 or an errno.
int reserve(int descriptor, u64 place, u64 bytes);

// Maps the memory at a place of an arena, both multiples of kHugePage, so that huge pages are mapped as such. Null,
// with errno, where it cannot.
char* map_arena(int descriptor, u64 place, u64 bytes);

// Some pages of a file that another rank has given away.
class SharedPages {
  public:
    // Throws std::system_error.
    SharedPages(int descriptor, u64 place, u64 bytes);
    ~SharedPages();
    SharedPages(const SharedPages&) = delete;
    SharedPages& operator=(const SharedPages&) = delete;
    char* data() const { return at_; }

  private:
    char* at_;
    u64 bytes_;
};

}  // namespace hocket
