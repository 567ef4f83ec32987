// How fast slots are by how long their ring is: c++ -std=c++20 -O3 -march=native -pthread benchmarks/ring.cpp -o ring
// && ./ring
//
// One core copies slot after slot from a buffer of 256 KB, which stays in its cache, to a ring; another copies them to
// a buffer as long. Bytes a second, each the median of several runs. What is stored over what another core has just
// read can be slow where a ring is short.

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t kKilo = 1 << 10, kNear = 256 * kKilo, kTotal = 256 * kKilo * kKilo, kRuns = 7;

struct alignas(128) Counter {
    std::atomic<std::size_t> count{0};
};

void run_on(unsigned which) {
    cpu_set_t all, one;
    sched_getaffinity(0, sizeof all, &all);
    CPU_ZERO(&one);
    for (unsigned core = 0; core < CPU_SETSIZE; ++core)
        if (CPU_ISSET(core, &all) && which-- == 0) CPU_SET(core, &one);
    sched_setaffinity(0, sizeof one, &one);
}

void spin_until(const std::function<bool()>& met) {
    while (!met()) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
}

char* pages(std::size_t bytes) {
    char* found = static_cast<char*>(std::aligned_alloc(4 * kKilo, bytes));
    std::memset(found, 1, bytes);
    return found;
}

double gigabytes_a_second(std::size_t slot, std::size_t slots) {
    static char* const source = pages(kNear);
    static char* const target = pages(kNear);
    static char* const ring = pages(4 * kKilo * kKilo);
    Counter filled, freed;
    const std::size_t messages = kTotal / slot;
    const auto begin = std::chrono::steady_clock::now();
    std::thread reader([&] {
        run_on(1);
        for (std::size_t m = 0; m < messages; ++m) {
            spin_until([&] { return filled.count > m; });
            std::memcpy(target + m * slot % kNear, ring + m % slots * slot, slot);
            freed.count = m + 1;
        }
    });
    std::thread writer([&] {
        run_on(0);
        for (std::size_t m = 0; m < messages; ++m) {
            spin_until([&] { return m - freed.count < slots; });
            std::memcpy(ring + m % slots * slot, source + m * slot % kNear, slot);
            filled.count = m + 1;
        }
    });
    writer.join();
    reader.join();
    return double(kTotal) / std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / 1e9;
}

}  // namespace

int main() {
    std::printf("GB/s  slot of");
    for (const std::size_t slot : {8, 16, 32, 64}) std::printf("%10zu KB", slot);
    for (const std::size_t ring : {64, 96, 128, 160, 192, 224, 256, 512, 1024, 2048}) {
        std::printf("\nring of %4zu KB", ring);
        for (const std::size_t slot : {8, 16, 32, 64}) {
            std::vector<double> found;
            for (std::size_t r = 0; r < kRuns && ring >= 2 * slot && ring % slot == 0; ++r)
                found.push_back(gigabytes_a_second(slot * kKilo, ring / slot));
            std::sort(found.begin(), found.end());
            found.empty() ? std::printf("%13s", "") : std::printf("%13.1f", found[found.size() / 2]);
            std::fflush(stdout);
        }
    }
    std::printf("\n");
}
