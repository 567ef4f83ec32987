#include "transport/pages.h"

#include <fcntl.h>
#include <sys/ioctl.h>

#include "transport/memory.h"

namespace hocket {
namespace {

// As in linux/fs.h, which many systems have from before Linux 6.7.
struct Region {
    u64 begin, end, categories;
};
struct ScanArguments {
    u64 size, flags, begin, end, walked_to, regions, most_regions, most_pages;
    u64 inverted, all_of, any_of, returned;
};
static_assert(sizeof(ScanArguments) == 96);
constexpr u64 kIsHuge = 1 << 6;
constexpr unsigned long kPagemapScan = _IOWR('f', 16, ScanArguments);

}  // namespace

bool PageScan::finds_huge(const char* at, u64 bytes) {
    if (descriptor_ == kUnopened) descriptor_ = ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    const u64 first = reinterpret_cast<u64>(at) + bytes / 4;
    const u64 begin = first / kPage * kPage, end = (first + bytes / 2) / kPage * kPage + kPage;
    Region region{};  // of the first page that is not huge
    ScanArguments scan{};
    scan.size = sizeof scan;
    scan.begin = begin;
    scan.end = end;
    scan.regions = reinterpret_cast<u64>(&region);
    scan.most_regions = scan.most_pages = 1;
    scan.inverted = scan.all_of = kIsHuge;
    return ::ioctl(descriptor_, kPagemapScan, &scan) == 0;  // such regions; less than 0 for an error
}

}  // namespace hocket
