// What pages memory lies in, beside what /proc/self/smaps says of it.

#include <sys/mman.h>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "runner.h"
#include "transport/memory.h"
#include "transport/pages.h"

namespace hocket::test {
namespace {

// Kilobytes of the mapping that an address lies in, which are in huge pages.
u64 huge_kilobytes(const char* at) {
    std::ifstream smaps("/proc/self/smaps");
    bool here = false;
    for (std::string line; std::getline(smaps, line);) {
        std::istringstream words(line);
        u64 begin = 0, end = 0;
        char dash = 0;
        if (words >> std::hex >> begin >> dash >> end && dash == '-')
            here = begin <= reinterpret_cast<u64>(at) && reinterpret_cast<u64>(at) < end;
        if (here && line.starts_with("AnonHugePages:")) return std::stoull(line.substr(line.find(':') + 1));
    }
    return 0;
}

TEST(pages_of_memory) {
    constexpr u64 kMegabyte = 1 << 20, kBytes = 16 * kMegabyte;
    PageScan scan;
    for (const int advice : {MADV_HUGEPAGE, MADV_NOHUGEPAGE}) {
        void* const mapped = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(mapped != MAP_FAILED && (::madvise(mapped, kBytes, advice) == 0 || advice == MADV_HUGEPAGE));
        char* const at = static_cast<char*>(mapped);
        char* const middle = at + kBytes / 2;
        if (scan.of(at, kBytes) != Pages::kUnknown) {
            CHECK(scan.of(at, kBytes) == Pages::kSmall);  // nobody has touched it
            std::memset(at, 1, kBytes);
            const bool huge = huge_kilobytes(at) >= 10 << 10;  // all but two or so, at its ends
            const Pages expected = huge ? Pages::kHuge : Pages::kSmall;
            CHECK(!huge || advice == MADV_HUGEPAGE);
            for (const u64 bytes : {u64(1), u64(1000), u64(kPage), u64(kPage + 1), kMegabyte, 7 * kMegabyte})
                for (const u64 skip : {0, 1, 4095}) CHECK(scan.of(middle + skip, bytes) == expected);
            CHECK(scan.of(at, kBytes) == expected);
            ::madvise(middle, kPage, MADV_DONTNEED);  // which splits the huge page that it lies in
            CHECK(scan.of(at, kBytes) == Pages::kSmall);
            CHECK(scan.of(at, kBytes / 2) == expected);
        }
        ::munmap(mapped, kBytes);
    }
}

}  // namespace
}  // namespace hocket::test
