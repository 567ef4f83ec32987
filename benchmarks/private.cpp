// What two cores can do with arrays that only their own process can see, in plain loops, without a library around them:
// c++ -std=c++20 -O3 -march=native benchmarks/private.cpp -o private && ./private
//
// Two processes with a core each and arrays of 32 MB in huge pages, where the kernel gives them, so many that no cache
// holds the next ones. Milliseconds, the median of several runs, and the share of the floor: to load every input and
// store every output once, at the bandwidth of a copy past the caches by both in the same minute, as in peers.py. The
// rest of docs/how-fast.md says what of this hocket reaches. For processors with AVX-512.

#include <immintrin.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

constexpr std::size_t kKilo = 1 << 10, kMega = kKilo * kKilo, kBytes = 32 * kMega, kHalf = kBytes / 2, kSets = 6;
constexpr std::size_t kSlots = 4, kAhead = 4 * kKilo, kRuns = 9;

struct alignas(128) Counter {
    std::atomic<std::size_t> count{0};
};

// Slots from one process to the other, used in turns.
struct Ring {
    Counter filled, freed;
    alignas(4096) char slots[4 * kMega];
};

struct Shared {
    Counter entered[2];
    std::atomic<double> took[2];
    Ring parts[2], sums[2];  // by the sender
    Ring whole;
};

char* pages(std::size_t bytes, int kind) {
    constexpr std::size_t kHuge = 2 * kMega;
    void* at = mmap(nullptr, bytes + kHuge, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) std::perror("mmap"), std::exit(1);
    char* found = reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(at) + kHuge - 1) & ~(kHuge - 1));
    madvise(found, bytes, MADV_HUGEPAGE);
    return found;
}

void run_on(unsigned which) {
    cpu_set_t all, one;
    sched_getaffinity(0, sizeof all, &all);
    CPU_ZERO(&one);
    for (unsigned core = 0; core < CPU_SETSIZE; ++core)
        if (CPU_ISSET(core, &all) && which-- == 0) CPU_SET(core, &one);
    sched_setaffinity(0, sizeof one, &one);
}

// `a`, or `a + b`, past the caches to `output` and through them to `slot`, where these are not null. What is to come is
// asked for `ahead` bytes before.
template <bool adds, bool outputs, bool passes> [[gnu::noinline]] void step(const char* a, const char* b, char* output,
                                                                            char* slot, std::size_t bytes,
                                                                            std::size_t ahead = kAhead) {
    for (std::size_t i = 0; i < bytes; i += 64) {
        const std::size_t next = std::min(i + ahead, bytes - 64), soon = std::min(i + kKilo, bytes - 64);
        _mm_prefetch(a + next, _MM_HINT_T1);
        if constexpr (adds) _mm_prefetch(b + next, _MM_HINT_T1);
        if constexpr (passes) __builtin_prefetch(slot + soon, 1);
        __m512 value = _mm512_loadu_ps(a + i);
        if constexpr (adds) value = _mm512_add_ps(value, _mm512_loadu_ps(b + i));
        if constexpr (outputs) _mm512_stream_ps(reinterpret_cast<float*>(output + i), value);
        if constexpr (passes) _mm512_store_ps(reinterpret_cast<float*>(slot + i), value);
    }
}

struct Process {
    unsigned rank;
    pid_t other;
    Shared& shared;
    std::vector<char*> inputs, outputs;  // at the same addresses in both processes
    char* scratch;
    std::size_t calls = 0;

    void meet() {
        const std::size_t count = ++shared.entered[rank].count;
        while (shared.entered[1 - rank].count < count) _mm_pause();
    }

    // Whether a slot is free, or full, for the message of this number.
    static bool free(const Ring& ring, std::size_t message) { return message - ring.freed.count < kSlots; }
    static bool full(const Ring& ring, std::size_t message) { return ring.filled.count > message; }
    static char* slot(Ring& ring, std::size_t message, std::size_t tile) {
        return ring.slots + message % kSlots * tile;
    }

    // Has the kernel copy from the other process to this one, or back.
    void kernel(decltype(process_vm_readv) copy, char* mine, char* theirs, std::size_t bytes) const {
        const iovec here{mine, bytes}, there{theirs, bytes};
        if (copy(other, &here, 1, &there, 1, 0) != ssize_t(bytes)) std::perror("copy by the kernel"), std::exit(1);
    }

    void copy(std::size_t set) { step<false, true, false>(inputs[set], nullptr, outputs[set], nullptr, kBytes, 0); }

    // Either sums one half: the other's part of it comes through slots, or the kernel copies it to `scratch`, in the
    // cache. The sums go to the own output, and through slots to the other's.
    void all_reduce(std::size_t set, std::size_t tile, bool by_kernel) {
        Ring &to = shared.parts[rank], &from = shared.parts[1 - rank];
        Ring &sums = shared.sums[rank], &others = shared.sums[1 - rank];
        const std::size_t tiles = kHalf / tile, mine = rank * kHalf, theirs = kHalf - mine;
        const std::size_t parts = to.filled.count, before = sums.filled.count;
        char *input = inputs[set], *output = outputs[set];
        if (by_kernel) meet();
        for (std::size_t sent = by_kernel ? tiles : 0, summed = 0, got = 0; sent + summed + got < 3 * tiles;) {
            if (sent < tiles && free(to, parts + sent)) {
                step<false, false, true>(input + theirs + sent * tile, nullptr, nullptr, slot(to, parts + sent, tile),
                                         tile);
                to.filled.count = parts + ++sent;
            }
            if (summed < tiles && (by_kernel || full(from, parts + summed)) && free(sums, before + summed)) {
                char* const own = input + mine + summed * tile;
                char* const part = by_kernel ? scratch : slot(from, parts + summed, tile);
                if (by_kernel) kernel(process_vm_readv, scratch, own, tile);
                step<true, true, true>(own, part, output + mine + summed * tile, slot(sums, before + summed, tile),
                                       tile);
                ++summed;
                if (!by_kernel) from.freed.count = parts + summed;
                sums.filled.count = before + summed;
            }
            if (got < tiles && full(others, before + got)) {
                char* const at = slot(others, before + got, tile);
                step<false, true, false>(at, nullptr, output + theirs + got * tile, nullptr, tile);
                others.freed.count = before + ++got;
            }
        }
    }

    // What process 1 has goes through slots to process 0, which sums.
    void reduce(std::size_t set, std::size_t tile) {
        Ring& ring = shared.whole;
        const std::size_t before = rank == 1 ? ring.filled.count : ring.freed.count;
        for (std::size_t m = 0; m < kBytes / tile; ++m) {
            char *const at = slot(ring, before + m, tile), *const own = inputs[set] + m * tile;
            if (rank == 1) {
                while (!free(ring, before + m)) _mm_pause();
                step<false, false, true>(own, nullptr, nullptr, at, tile);
                ring.filled.count = before + m + 1;
            } else {
                while (!full(ring, before + m)) _mm_pause();
                step<true, true, false>(own, at, outputs[set] + m * tile, nullptr, tile);
                ring.freed.count = before + m + 1;
            }
        }
    }

    // Either sums a half, of which the kernel copies the other's part to `scratch`; sums of process 1 go through slots.
    void reduce_by_kernel(std::size_t set, std::size_t tile) {
        Ring& ring = shared.whole;
        const std::size_t tiles = kHalf / tile, before = rank == 1 ? ring.filled.count : ring.freed.count;
        char *const output = outputs[set], *const own = inputs[set] + rank * kHalf;
        meet();
        for (std::size_t summed = 0, got = rank == 1 ? tiles : 0; summed + got < 2 * tiles;) {
            if (summed < tiles && (rank == 0 || free(ring, before + summed))) {
                kernel(process_vm_readv, scratch, own + summed * tile, tile);
                if (rank == 0) {
                    step<true, true, false>(own + summed * tile, scratch, output + summed * tile, nullptr, tile);
                } else {
                    step<true, false, true>(own + summed * tile, scratch, nullptr, slot(ring, before + summed, tile),
                                            tile);
                    ring.filled.count = before + summed + 1;
                }
                ++summed;
            }
            if (got < tiles && full(ring, before + got)) {
                char* const at = slot(ring, before + got, tile);
                step<false, true, false>(at, nullptr, output + kHalf + got * tile, nullptr, tile);
                ring.freed.count = before + ++got;
            }
        }
    }

    void broadcast(std::size_t set, std::size_t tile) {
        Ring& ring = shared.whole;
        const std::size_t tiles = kBytes / tile, before = rank == 0 ? ring.filled.count : ring.freed.count;
        for (std::size_t m = 0; m < tiles; ++m) {
            char* const at = slot(ring, before + m, tile);
            if (rank == 0) {
                while (!free(ring, before + m)) _mm_pause();
                step<false, false, true>(inputs[set] + m * tile, nullptr, nullptr, at, tile);
                ring.filled.count = before + m + 1;
            } else {
                while (!full(ring, before + m)) _mm_pause();
                step<false, true, false>(at, nullptr, outputs[set] + m * tile, nullptr, tile);
                ring.freed.count = before + m + 1;
            }
        }
    }

    // Each core has the kernel copy a half.
    void broadcast_by_kernel(std::size_t set, std::size_t tile) {
        meet();
        for (std::size_t at = 0; at < kHalf; at += tile)
            rank == 0 ? kernel(process_vm_writev, inputs[set] + at, outputs[set] + at, tile)
                      : kernel(process_vm_readv, outputs[set] + kHalf + at, inputs[set] + kHalf + at, tile);
    }

    // Milliseconds of the slower process, the median of several runs.
    template <class Call> double time(Call call) {
        std::vector<double> found;
        for (std::size_t r = 0; r < kRuns; ++r) {
            const std::size_t set = calls++ % kSets;
            meet();
            const auto begin = std::chrono::steady_clock::now();
            call(set);
            _mm_sfence();
            shared.took[rank] =
                std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
            meet();
            found.push_back(std::max<double>(shared.took[0], shared.took[1]));
            meet();
        }
        std::sort(found.begin(), found.end());
        return found[kRuns / 2];
    }

    void compare() {
        run_on(rank);
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
        for (char* array : inputs) std::memset(array, 1, kBytes);
        for (char* array : outputs) std::memset(array, 1, kBytes);
        for (int round = 0; round < 3; ++round) {
            const double copied = time([&](std::size_t set) { copy(set); });
            if (rank == 0)
                std::printf("a copy by each past the caches: %.2f ms, %.1f GB/s\n", copied, 4e-6 * kBytes / copied);
            // `moved`: what the floor counts, in multiples of the array; a copy by each is 4.
            const auto tell = [&](const char* what, std::size_t moved, auto call) {
                for (const std::size_t tile : {64, 256, 1024}) {
                    const double took = time([&](std::size_t set) { call(set, tile * kKilo); });
                    const double floor = copied * double(moved) / 4;
                    if (rank == 0)
                        std::printf("  %-38s by %4zu KB %6.2f ms, %3.0f %%\n", what, tile, took, 100 * floor / took);
                }
            };
            tell("AllReduce, slots", 4, [&](auto... of) { all_reduce(of..., false); });
            tell("AllReduce, copies by the kernel, slots", 4, [&](auto... of) { all_reduce(of..., true); });
            tell("Broadcast, slots", 2, [&](auto... of) { broadcast(of...); });
            tell("Broadcast, copies by the kernel", 2, [&](auto... of) { broadcast_by_kernel(of...); });
            tell("Reduce, slots", 3, [&](auto... of) { reduce(of...); });
            tell("Reduce, copies by the kernel, slots", 3, [&](auto... of) { reduce_by_kernel(of...); });
            std::fflush(stdout);
        }
    }
};

}  // namespace

int main() {
    Process process{0, 0, *new (pages(sizeof(Shared), MAP_SHARED)) Shared, {}, {}, pages(kMega, MAP_PRIVATE)};
    for (std::size_t set = 0; set < kSets; ++set) {
        process.inputs.push_back(pages(kBytes, MAP_PRIVATE));
        process.outputs.push_back(pages(kBytes, MAP_PRIVATE));
    }
    const pid_t parent = getpid(), child = fork();
    process.rank = child == 0;
    process.other = child == 0 ? parent : child;
    process.compare();
    if (child != 0) waitpid(child, nullptr, 0);
}
