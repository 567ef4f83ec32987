#include "memory.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <system_error>
#include <unistd.h>

namespace hocket {
namespace {

u64 whole_pages(u64 bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// Maps part of the file. The pages are there afterwards: a full memory is an error now rather than a SIGBUS later.
void* map(int descriptor, u64 place, u64 bytes) {
    int failed;
    do failed = ::posix_fallocate(descriptor, off_t(place), off_t(bytes));
    while (failed == EINTR);
    if (failed != 0) {
        errno = failed;
        return MAP_FAILED;
    }
    return ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, off_t(place));
}

}  // namespace

SharedMemory::SharedMemory(int descriptor, u32 ranks)
    : descriptor_(descriptor), ranks_(ranks), control_bytes_(whole_pages(ranks * sizeof(RankBlock))) {
    void* at = map(descriptor_, 0, control_bytes_);
    if (at == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "cannot map shared memory");
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
