// Pages of files that ranks map: sizes, backing with memory, mapping at huge pages.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <cerrno>
#include <system_error>

#include "transport/memory.h"

namespace hocket {

constexpr u64 kHugePage = 2 << 20;
constexpr u64 kMostWindows = u64(1) << 24;
constexpr u64 kFileBytes = (kMostWindows + 1) * kWindowStride;  // of a file that ranks share, sparse

inline u64 whole_pages(u64 bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// Makes sure that the pages are there: a full memory is an error now rather than a SIGBUS later. Not posix_fallocate,
// which writes to the pages where the file system cannot do it, while another rank does. Returns 0 or an errno.
inline int reserve(int descriptor, u64 place, u64 bytes) {
    while (::fallocate(descriptor, 0, off_t(place), off_t(bytes)) != 0)
        if (errno != EINTR) return errno;
    return 0;
}

// Maps the memory at a place of an arena, both multiples of kHugePage, so that huge pages are mapped as such. Null,
// with errno, where it cannot.
inline char* map_arena(int descriptor, u64 place, u64 bytes) {
    // Room for it wherever it begins in there; what is too much goes back.
    void* found = ::mmap(nullptr, bytes + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) return nullptr;
    char* const room = static_cast<char*>(found);
    const u64 skip = -reinterpret_cast<u64>(room) % kHugePage;
    if (skip != 0) ::munmap(room, skip);
    ::munmap(room + skip + bytes, kHugePage - skip);
    void* at = ::mmap(room + skip, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, descriptor, off_t(place));
    return at == MAP_FAILED ? nullptr : room + skip;  // the room stays: nobody knows what is there after a failure
}

// Some pages of a file that another rank has given away.
class SharedPages {
  public:
    // Throws std::system_error.
    SharedPages(int descriptor, u64 place, u64 bytes) : at_(map_arena(descriptor, place, bytes)), bytes_(bytes) {
        if (at_ == nullptr) throw std::system_error(errno, std::generic_category(), "cannot map the memory of a rank");
        ::madvise(at_, bytes, MADV_DONTDUMP);  // it is in the dump of its rank
    }
    ~SharedPages() { ::munmap(at_, bytes_); }
    SharedPages& operator=(SharedPages&&) = delete;
    char* data() const { return at_; }

  private:
    char* at_;
    u64 bytes_;
};

}  // namespace hocket
