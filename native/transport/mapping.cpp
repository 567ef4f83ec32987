#include "transport/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <cerrno>
#include <system_error>

namespace hocket {

u64 whole_pages(u64 bytes) { return (bytes + kPage - 1) / kPage * kPage; }

int reserve(int descriptor, u64 place, u64 bytes) {
    while (::fallocate(descriptor, 0, off_t(place), off_t(bytes)) != 0)
        if (errno != EINTR) return errno;
    return 0;
}

char* map_arena(int descriptor, u64 place, u64 bytes) {
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

SharedPages::SharedPages(int descriptor, u64 place, u64 bytes)
    : at_(map_arena(descriptor, place, bytes)),
      bytes_(bytes) {
    if (at_ == nullptr) throw std::system_error(errno, std::generic_category(), "cannot map the memory of a rank");
    ::madvise(at_, bytes, MADV_DONTDUMP);  // it is in the dump of its rank
}

SharedPages::~SharedPages() { ::munmap(at_, bytes_); }

}  // namespace hocket
