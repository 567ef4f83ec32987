// For distance.py: what a line costs that another process has just stored, and what two processes pay to exchange
// arrays through areas that both map, in plain loops. For processors with AVX-512.

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

struct alignas(128) Counter {
    std::atomic<std::uint64_t> count{0};
};

// What the two share, zero at first: counters of each, then lines, then the areas of each.
struct Shared {
    Counter at[2], done[2], found, filled[2], read[2], sent, received;
    alignas(4096) volatile char lines[64][128];
    alignas(4096) char areas[2][8 << 20];
};

void await(const Counter& counter, std::uint64_t count) {
    while (counter.count.load(std::memory_order_acquire) < count) _mm_pause();
}

void copy(char* to, const char* from, std::size_t bytes, bool non_temporal) {
    for (std::size_t i = 0; i < bytes; i += 64) {
        const __m512i line = _mm512_loadu_si512(from + i);
        if (non_temporal) _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), line);
        else _mm512_storeu_si512(to + i, line);
    }
    if (non_temporal) _mm_sfence();
}

constexpr std::size_t kSlot = 64 << 10, kSlots = 32;

// One slot by memcpy, or by a loop that prefetches what it stores to 2 KB before its turn.
void copy_slot(char* to, const char* from, bool loop) {
    if (!loop) {
        std::memcpy(to, from, kSlot);
        return;
    }
    for (std::size_t i = 0; i < kSlot; i += 64) {
        __builtin_prefetch(to + i + 2048, 1);
        _mm512_storeu_si512(to + i, _mm512_loadu_si512(from + i));
    }
}

void add(char* to, const char* a, const char* b, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; i += 64)
        _mm512_storeu_ps(to + i, _mm512_add_ps(_mm512_loadu_ps(a + i), _mm512_loadu_ps(b + i)));
}

}  // namespace

extern "C" std::size_t shared_bytes() { return sizeof(Shared); }

// The median ticks that process 1 takes to load a line that process 0 has stored. Both call it, and get the same.
extern "C" std::uint64_t line_ticks(Shared* shared, int rank) {
    constexpr std::uint64_t kLooks = 300;
    static std::uint64_t turn = 0;
    std::vector<std::uint64_t> took;
    for (std::uint64_t look = 0; look < kLooks; ++look) {
        volatile char* const line = shared->lines[++turn % 64];
        if (rank == 0) {
            *line = char(turn);
            shared->at[0].count.store(turn, std::memory_order_release);
            await(shared->at[1], turn);
            continue;
        }
        await(shared->at[0], turn);
        _mm_lfence();
        const std::uint64_t begin = __rdtsc();
        _mm_lfence();
        (void)*line;
        _mm_lfence();
        took.push_back(__rdtsc() - begin);
        shared->at[1].count.store(turn, std::memory_order_release);
    }
    if (rank == 1) {
        std::nth_element(took.begin(), took.begin() + kLooks / 2, took.end());
        shared->found.count.store(took[kLooks / 2], std::memory_order_release);
    }
    shared->done[rank].count.store(turn, std::memory_order_release);
    await(shared->done[1 - rank], turn);
    return shared->found.count.load(std::memory_order_acquire);
}

// Microseconds in which each adds up x and the other's x, which goes through one of `areas` areas in turns.
extern "C" double exchange(Shared* shared, int rank, float* x, float* out, std::size_t bytes, std::size_t areas,
                           int non_temporal, int calls) {
    static std::uint64_t turn = 0;
    double took = 0;
    for (int call = 0; call < calls; ++call) {
        for (std::size_t i = 0; i < bytes / 4; i += 16) x[i] = float(call);
        const auto begin = std::chrono::steady_clock::now();
        const std::size_t at = ++turn % areas * bytes;
        copy(shared->areas[rank] + at, reinterpret_cast<const char*>(x), bytes, non_temporal != 0);
        shared->filled[rank].count.store(turn, std::memory_order_release);
        await(shared->filled[1 - rank], turn);
        add(reinterpret_cast<char*>(out), reinterpret_cast<const char*>(x), shared->areas[1 - rank] + at, bytes);
        shared->read[rank].count.store(turn, std::memory_order_release);
        await(shared->read[1 - rank], turn);
        took += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }
    return took / calls * 1e6;
}

// The median of microseconds in which process 0 passes x to process 1 through slots, from when both are there until the
// latter has it. The former copies by a loop or by memcpy, and so does the latter. `bytes` is so many whole slots.
extern "C" double pass_slots(Shared* shared, int rank, char* x, std::size_t bytes, int stores_by_loop,
                             int loads_by_loop, int calls) {
    static std::uint64_t turn = 0, slots = 0;
    std::vector<double> took;
    for (int call = 0; call < calls; ++call) {
        shared->filled[rank].count.store(++turn, std::memory_order_release);
        await(shared->filled[1 - rank], turn);
        const auto begin = std::chrono::steady_clock::now();
        for (std::size_t at = 0; at < bytes; at += kSlot) {
            char* const slot = shared->areas[0] + slots % kSlots * kSlot;
            if (rank == 0) {
                if (slots >= kSlots) await(shared->received, slots - kSlots + 1);
                copy_slot(slot, x + at, stores_by_loop != 0);
                shared->sent.count.store(++slots, std::memory_order_release);
            } else {
                await(shared->sent, slots + 1);
                copy_slot(x + at, slot, loads_by_loop != 0);
                shared->received.count.store(++slots, std::memory_order_release);
            }
        }
        shared->read[rank].count.store(turn, std::memory_order_release);
        await(shared->read[1 - rank], turn);
        took.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    std::nth_element(took.begin(), took.begin() + calls / 2, took.end());
    return took[calls / 2] * 1e6;
}
