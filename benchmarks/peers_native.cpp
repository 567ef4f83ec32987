// What peers_worker.py cannot do in Python: a barrier over shared memory, and loops that measure memory.

#include <cstddef>
#include <cstdint>
#include <sched.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

constexpr std::size_t kLine = 16;  // words from one rank's counter to the next: two cache lines
constexpr int kSpins = 200;        // some microseconds; then others may have the core

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// 64 bytes past the caches. `to` is aligned to as many.
void stream(float* to, const float* from) {
#if defined(__AVX512F__)
  _mm512_stream_ps(to, _mm512_loadu_ps(from));
#elif defined(__AVX__)
  for (int i = 0; i < 16; i += 8) _mm256_stream_ps(to + i, _mm256_loadu_ps(from + i));
#elif defined(__x86_64__)
  for (int i = 0; i < 16; i += 4) _mm_stream_ps(to + i, _mm_loadu_ps(from + i));
#elif defined(__aarch64__)
  for (int i = 0; i < 16; i += 8)
    asm volatile("ldp q0, q1, [%1]\n\tstnp q0, q1, [%0]" ::"r"(to + i), "r"(from + i) : "v0", "v1", "memory");
#else
  for (int i = 0; i < 16; ++i) to[i] = from[i];
#endif
}

}  // namespace

extern "C" {

// Every rank counts its own arrivals and waits until all others have as many.
void barrier(std::int64_t* arrivals, int rank, int ranks) {
  const std::int64_t mine = __atomic_load_n(&arrivals[rank * kLine], __ATOMIC_RELAXED) + 1;
  __atomic_store_n(&arrivals[rank * kLine], mine, __ATOMIC_RELEASE);  // partner: the load below, in the other ranks
  for (int other = 0; other < ranks; ++other) {
    for (int spins = 0; __atomic_load_n(&arrivals[other * kLine], __ATOMIC_ACQUIRE) < mine; ++spins) {
      if (spins < kSpins) {
        pause();
      } else {
        sched_yield();
      }
    }
  }
}

// Built without the recognition of loops that are a memcpy, whose stores would be the C library's choice.
void copy(float* __restrict to, const float* __restrict a, const float*, std::size_t elements) {
  for (std::size_t i = 0; i < elements; ++i) to[i] = a[i];
}

void reduce(float* __restrict to, const float* __restrict a, const float* __restrict b, std::size_t elements) {
  for (std::size_t i = 0; i < elements; ++i) to[i] = a[i] + b[i];
}

// `elements` is a multiple of 16.
void copy_non_temporal(float* to, const float* a, const float*, std::size_t elements) {
  for (std::size_t i = 0; i < elements; i += 16) stream(to + i, a + i);
#if defined(__x86_64__)
  _mm_sfence();
#endif
}
}
