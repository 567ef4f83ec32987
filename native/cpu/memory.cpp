#include "memory.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <system_error>
#include <unistd.h>

namespace hocket {
namespace {

u64 whole_pages(u64 bytes) { return (bytes + kPage - 1) / kPage * kPage; }

u64 control_bytes(u32 ranks) { return whole_pages(ranks * sizeof(RankBlock)); }

// Makes sure that the pages are there: a full memory is an error now rather than a SIGBUS later. Not posix_fallocate,
// which writes to the pages where the file system cannot do it, while another rank does.
int reserve(int descriptor, u64 place, u64 bytes) {
    while (::fallocate(descriptor, 0, off_t(place), off_t(bytes)) != 0)
        if (errno != EINTR) return errno;
    return 0;
}

void* map(int descriptor, u64 place, u64 bytes) {
    if (const int failed = reserve(descriptor, place, bytes)) {
        errno = failed;
        return MAP_FAILED;
    }
    return ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, off_t(place));
}

}  // namespace

int reserve_control(int descriptor, u32 ranks) { return reserve(descriptor, 0, control_bytes(ranks)); }

SharedMemory::SharedMemory(int descriptor, u32 ranks)
    : descriptor_(descriptor), ranks_(ranks), control_bytes_(control_bytes(ranks)) {
    void* at = map(descriptor_, 0, control_bytes_);
    if (at == MAP_FAILED) {
        const int failed = errno;
        ::close(descriptor_);
        throw std::system_error(failed, std::generic_category(), "cannot map shared memory");
    }
    control_ = static_cast<RankBlock*>(at);
}

SharedMemory::~SharedMemory() {
    for (auto& [index, mapping] : mappings_)
        if (mapping->counters != nullptr) ::munmap(mapping->counters, kPage + mapping->bytes);
    ::munmap(control_, control_bytes_);
    ::close(descriptor_);
}

Window* SharedMemory::window(u32 source, u32 destination, u32 channel) {
    const u64 index = (u64(channel) * ranks_ + source) * ranks_ + destination;
    if (index >= kMostWindows) return nullptr;
    auto& mapping = mappings_[index];
    if (mapping == nullptr) {
        mapping = std::make_unique<Mapping>();
        mapping->place = (index + 1) * kWindowStride;
    }
    return mapping.get();
}

int SharedMemory::reserve(Window* window, u64 bytes) {
    bytes = whole_pages(bytes);
    if (window->counters != nullptr && bytes <= window->bytes) return 0;
    if (bytes > kWindowStride - kPage) return EFBIG;
    void* at = map(descriptor_, static_cast<Mapping*>(window)->place, kPage + bytes);
    if (at == MAP_FAILED) return errno;
    if (window->counters != nullptr) ::munmap(window->counters, kPage + window->bytes);
    window->counters = static_cast<Counters*>(at);
    window->bytes = bytes;
    return 0;
}

}  // namespace hocket
