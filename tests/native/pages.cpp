// What pages memory lies in, beside what /proc/self/smaps says of it.

#include <sys/mman.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <cstdio>
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

// Linux 6.7 and later say what pages memory lies in.
bool says_pages() {
    utsname system{};
    u32 major = 0, minor = 0;
    ::uname(&system);
    return std::sscanf(system.release, "%u.%u", &major, &minor) == 2 && (major > 6 || (major == 6 && minor >= 7)) &&
           ::access("/proc/self/pagemap", R_OK) == 0 && ::sysconf(_SC_PAGESIZE) == long(kPage);
}

TEST(pages_of_memory) {
    constexpr u64 kHugePage = 2 << 20, kBytes = 8 * kHugePage, kMapped = kBytes + kHugePage;
    PageScan scan;
    for (const int advice : {MADV_HUGEPAGE, MADV_NOHUGEPAGE}) {
        void* const mapped = ::mmap(nullptr, kMapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(mapped != MAP_FAILED);
        ::madvise(mapped, kMapped, advice);  // refused where the kernel knows no huge pages
        char* const at = static_cast<char*>(mapped) + (kHugePage - reinterpret_cast<u64>(mapped) % kHugePage);
        char* const middle = at + kBytes / 2;
        CHECK(!scan.finds_huge(at, kBytes));  // nobody has touched it
        std::memset(at, 1, kBytes);
        const bool huge = huge_kilobytes(at) >= kBytes >> 10;
        CHECK(!huge || advice == MADV_HUGEPAGE);
        const bool expected = huge && says_pages();
        for (const u64 bytes : {u64(1), u64(1000), kPage, kPage + 1, kHugePage / 2, 3 * kHugePage})
            for (const u64 skip : {0, 1, 4095}) CHECK(scan.finds_huge(middle + skip, bytes) == expected);
        CHECK(scan.finds_huge(at, kBytes) == expected);
        ::madvise(middle, kPage, MADV_DONTNEED);  // which splits the huge page that it lies in
        CHECK(!scan.finds_huge(at, kBytes));
        CHECK(scan.finds_huge(at, kBytes / 2) == expected);
        ::munmap(mapped, kMapped);
    }
}

}  // namespace
}  // namespace hocket::test
