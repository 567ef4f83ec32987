#include "transport/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <iterator>

#include "transport/mapping.h"

namespace hocket {

constexpr int kCollapse = 25;  // MADV_COLLAPSE, which not all headers have

Arena::~Arena() {
    for (u64 e = 0; e < extended_; ++e) ::munmap(extents_[e].base, extents_[e].bytes);
    ::close(descriptor_);
}

char* Arena::allocate(u64 bytes) {
    bytes = whole_pages(std::max(bytes, u64(1)));
    if (bytes == 0 || bytes > kFileBytes) {
        errno = ENOMEM;
        return nullptr;
    }
    auto found = std::ranges::find_if(free_, [&](const auto& range) { return range.second >= bytes; });
    if (found == free_.end()) {
        if (!grow(bytes)) return nullptr;
        found = std::prev(free_.end());
    }
    const auto [place, length] = *found;
    Extent& extent = extent_of(place);
    const u64 end = place - extent.place + bytes;
    if (const int failed = back(extent, end)) {
        errno = failed;
        return nullptr;
    }
    free_.erase(found);
    if (length > bytes) free_.emplace(place + bytes, length - bytes);
    return extent.base + (place - extent.place);
}

void Arena::release(char* at, u64 bytes) {
    u64 first = place(at), end = first + whole_pages(std::max(bytes, u64(1)));
    {
        const std::lock_guard<std::mutex> held(keeping_);
        if (std::ranges::any_of(kept_, [&](u64 kept) { return kept - first < end - first; })) return;
    }
    const Extent& extent = extent_of(first);
    auto next = free_.lower_bound(first);
    if (next != free_.end() && next->first == end && end < extent.place + extent.bytes) {
        end += next->second;
        next = free_.erase(next);
    }
    if (next != free_.begin() && first > extent.place) {
        if (auto& [before, length] = *std::prev(next); before + length == first) {
            length = end - before;
            return;
        }
    }
    free_.emplace_hint(next, first, end - first);
}

u64 Arena::place(const char* at) const {
    const u64 extended = __atomic_load_n(&extended_, __ATOMIC_ACQUIRE);  // pairs with `grow`, in another thread
    for (u64 e = 0; e < extended; ++e) {
        const u64 skip = u64(at - extents_[e].base);
        if (skip < extents_[e].bytes) return extents_[e].place + skip;
    }
    return kNowhere;
}

void Arena::forked() {
    for (u64 e = 0; e < extended_; ++e)
        ::mmap(extents_[e].base, extents_[e].backed, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, descriptor_,
               off_t(extents_[e].place));
    free_.clear();
    extended_ = 0;
}

// Puts memory behind an extent, at least up to `end`. Returns 0, or an errno, and then has taken none.
int Arena::back(Extent& extent, u64 end) {
    const u64 before = extent.backed;
    while (extent.backed < end) {
        const u64 place = extent.place + extent.backed, rest = kHugePage - extent.backed % kHugePage;
        // The kernel (since Linux 6.1) makes one page of small ones, of as few as there are. The last: so long is the
        // file.
        if (collapses_ && rest == kHugePage && reserve(descriptor_, place + kHugePage - kPage, kPage) == 0) {
            if (::madvise(extent.base + extent.backed, kHugePage, kCollapse) == 0) {
                extent.backed += kHugePage;
                continue;
            }
            collapses_ = errno != EINVAL;  // of a kernel that does not know it, or a file that it has none for
        }
        const u64 bytes = std::min(rest, end - extent.backed);
        if (const int failed = reserve(descriptor_, place, bytes)) {
            const u64 taken =
                extent.backed + rest - before;  // up to the end of a huge page, so never in another extent
            ::fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(extent.place + before),
                        off_t(taken));
            extent.backed = before;
            return failed;
        }
        extent.backed += bytes;
    }
    return 0;
}

bool Arena::grow(u64 bytes) {
    bytes = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    const Extent last = extended_ == 0 ? Extent{} : extents_[extended_ - 1];
    const u64 place = last.place + last.bytes;
    // A limit on address space may leave room for less.
    for (const u64 length : {std::max({bytes, place, kFirstExtent}), bytes}) {
        if (extended_ == kMostExtents) break;
        char* at = map_arena(descriptor_, place, length);
        if (at == nullptr) continue;
        extents_[extended_] = {at, place, length, 0};
        __atomic_store_n(&extended_, extended_ + 1, __ATOMIC_RELEASE);  // pairs with `place`
        free_.emplace(place, length);
        return true;
    }
    errno = ENOMEM;
    return false;
}

Arena::Extent& Arena::extent_of(u64 place) {
    return *std::ranges::find_if(extents_, [&](const Extent& one) { return place - one.place < one.bytes; });
}

}  // namespace hocket
