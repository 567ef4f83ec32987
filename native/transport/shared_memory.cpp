#include "transport/shared_memory.h"

#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>
#include <algorithm>
#include <bit>
#include <cerrno>
#include <iterator>
#include <system_error>

namespace hocket {

constexpr u64 kLargestPage = 64 << 10;  // of the kernels there are

int reserve_control(int descriptor, u32 ranks, bool on_several_nodes) {
    return reserve(descriptor, 0, whole_pages(control_bytes(ranks, on_several_nodes)));
}

SharedMemory::SharedMemory(int descriptor, u32 ranks, bool on_several_nodes, std::vector<int> arenas, Arena& own,
                           std::vector<pid_t> processes)
    : descriptor_(descriptor),
      ranks_(ranks),
      control_bytes_(whole_pages(control_bytes(ranks, on_several_nodes))),
      own_(own),
      processes_(std::move(processes)),
      self_(::getpid()) {
    for (const int arena : arenas) neighbours_.push_back({arena, nullptr, 0, {}});
    void* at = ::mmap(nullptr, control_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
    if (at == MAP_FAILED) {
        const int failed = errno;
        close();
        throw std::system_error(failed, std::generic_category(), "cannot map shared memory");
    }
    control_ = static_cast<RankBlock*>(at);
}

SharedMemory::~SharedMemory() {
    for (auto& [index, mapping] : mappings_)
        if (mapping.counters != nullptr) ::munmap(mapping.counters, kPage + mapping.bytes);
    for (const Neighbour& neighbour : neighbours_)
        if (neighbour.base != nullptr) ::munmap(neighbour.base, neighbour.bytes);
    if (control_ != nullptr) ::munmap(control_, control_bytes_);
    if (rotated_ != nullptr) ::munmap(rotated_, rotated_bytes_);
    close();
}

void SharedMemory::close() {
    for (const Neighbour& neighbour : neighbours_)
        if (neighbour.descriptor >= 0) ::close(neighbour.descriptor);
    ::close(descriptor_);
}

Window* SharedMemory::window(u32 source, u32 destination, u32 channel) {
    const u64 index = (u64(channel) * ranks_ + source) * ranks_ + destination;
    if (index >= kMostWindows) return nullptr;
    Mapping& mapping = mappings_[index];
    mapping.place = (index + 1) * kWindowStride;
    return &mapping;
}

int SharedMemory::reserve(Window* window, u64 bytes) {
    bytes = whole_pages(bytes);
    if (window->counters != nullptr && bytes <= window->bytes) return 0;
    if (bytes > kWindowStride - kPage) return EFBIG;
    const u64 place = static_cast<Mapping*>(window)->place;
    if (const int failed = hocket::reserve(descriptor_, place, kPage + bytes)) return failed;
    void* at = ::mmap(nullptr, kPage + bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, off_t(place));
    if (at == MAP_FAILED) return errno;
    if (window->counters != nullptr) ::munmap(window->counters, kPage + window->bytes);
    window->counters = static_cast<Counters*>(at);
    window->bytes = bytes;
    return 0;
}

// Lies behind the control region, from where a page begins, however large pages are. Who asked for all of it, as others
// do, would wait for them in the kernel.
char* SharedMemory::rotated(u32 rank, u64 bytes) {
    if (rotated_ != nullptr) return rotated_;
    const u64 begin = (control_bytes_ + kLargestPage - 1) / kLargestPage * kLargestPage, of_all = ranks_ * bytes;
    errno = begin + of_all > kPlans ? EFBIG : hocket::reserve(descriptor_, begin + rank * bytes, bytes);
    if (errno != 0) return nullptr;
    void* at = ::mmap(nullptr, of_all, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, off_t(begin));
    if (at == MAP_FAILED) return nullptr;
    rotated_ = static_cast<char*>(at);
    rotated_bytes_ = of_all;
    return rotated_;
}

u64 SharedMemory::place(const char* at) const {
    const auto after = lent_.upper_bound(const_cast<char*>(at));
    if (after == lent_.begin()) return own_.place(at);
    const auto& [begin, lent] = *std::prev(after);
    const u64 skip = u64(at - begin);
    return skip < lent.bytes ? lent.place + skip : own_.place(at);
}

// Maps more than is asked for, so that one that grows is mapped again a few times only: what has no memory takes none.
char* SharedMemory::arena(u32 rank, u64 bytes) {
    Neighbour& neighbour = neighbours_[rank];
    if (bytes <= neighbour.bytes) return neighbour.base;
    const u64 wanted = std::bit_ceil(std::max(bytes, kWindowStride / 64));
    char* at = map_arena(neighbour.descriptor, 0, wanted);
    if (at == nullptr) return nullptr;
    ::madvise(at, wanted, MADV_DONTDUMP);  // it is in the dump of its rank
    if (neighbour.base != nullptr) ::munmap(neighbour.base, neighbour.bytes);
    neighbour.base = at;
    neighbour.bytes = wanted;
    return neighbour.base;
}

char* SharedMemory::adopted(u32 rank, u64 place) const {
    const auto& known = neighbours_[rank].adopted;
    const auto after = known.upper_bound(place);
    if (place == kNowhere || after == known.begin()) return nullptr;
    const auto& [begin, borrowed] = *std::prev(after);
    return borrowed.at + (place - begin);
}

// Looks at the first byte alone: an array lies in one mapping. A sandbox that the process has entered meanwhile may
// refuse either system call, also one that copies nothing.
bool SharedMemory::reachable(const char* mine) const {
    char first;
    return pull_from(self_, mine, &first, 1) == 0 && ::process_vm_writev(self_, nullptr, 0, nullptr, 0, 0) == 0;
}

}  // namespace hocket
