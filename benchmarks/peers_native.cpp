// What peers_worker.py cannot do in Python: a barrier over shared memory, loops that measure memory, and the least that
// two cores must do for a collective.

#include <Python.h>

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

constexpr std::size_t kLine = 16;  // words from one rank's counter to the next: two cache lines
constexpr int kSpins = 200;        // some microseconds; then others may have the core

void relax() {
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

// 16 elements, anywhere in memory.
typedef float Some __attribute__((vector_size(64), aligned(4), may_alias));
constexpr std::size_t kSome = 16, kAhead = 2048 / sizeof(float);

Some& some(float* at) { return *reinterpret_cast<Some*>(at); }
const Some& some(const float* at) { return *reinterpret_cast<const Some*>(at); }

// What a rank does once both have entered a call: `to`, and `also` if there is such, become `a`, or `a + b`.
struct Part {
    const float* a;
    const float* b;
    float* to;
    float* also;
    std::size_t elements;
};

template <bool past> void store(float* to, Some value) {
    if constexpr (past) stream(to, reinterpret_cast<const float*>(&value));
    else some(to) = value;
}

template <bool past, bool adds, bool both> void work(const Part& part) {
    std::size_t i = 0;
    for (; i + kSome <= part.elements; i += kSome) {
        __builtin_prefetch(part.a + i + kAhead);
        Some value = some(part.a + i);
        if constexpr (adds) {
            __builtin_prefetch(part.b + i + kAhead);
            value += some(part.b + i);
        }
        store<past>(part.to + i, value);
        if constexpr (both) store<past>(part.also + i, value);
    }
    for (; i < part.elements; ++i) {
        part.to[i] = adds ? part.a[i] + part.b[i] : part.a[i];
        if constexpr (both) part.also[i] = part.to[i];
    }
}

template <bool past> void work(const Part& part) {
    if (part.b != nullptr) part.also != nullptr ? work<past, true, true>(part) : work<past, true, false>(part);
    else part.also != nullptr ? work<past, false, true>(part) : work<past, false, false>(part);
}

// A call between two ranks. `mine` and `theirs` are lines that count who has entered, and on the next line who is done.
// `boxes`: where a short message goes, in calls of even and of odd number; null: both work on each other's buffers.
struct Call {
    std::int64_t* mine;
    std::int64_t* theirs;
    const float* message;
    float* boxes[2];
    std::size_t elements;
    Part parts[2][2];  // in calls of even and of odd number
    bool past;
};

void meet(std::int64_t* mine, const std::int64_t* theirs, std::int64_t count) {
    __atomic_store_n(mine, count, __ATOMIC_RELEASE);  // partner: the load below, in the other rank
    while (__atomic_load_n(theirs, __ATOMIC_ACQUIRE) < count) relax();
}

PyObject* carry_out(PyObject* self, PyObject*) {
    const Call& call = *static_cast<const Call*>(PyCapsule_GetPointer(self, nullptr));
    const std::int64_t count = *call.mine + 1;
    const bool odd = count % 2;
    if (call.boxes[odd] != nullptr) work<false>({call.message, nullptr, call.boxes[odd], nullptr, call.elements});
    meet(call.mine, call.theirs, count);
    for (const Part& part : call.parts[odd]) call.past ? work<true>(part) : work<false>(part);
#if defined(__x86_64__)
    if (call.past) _mm_sfence();
#endif
    if (call.boxes[odd] == nullptr) meet(call.mine + kLine, call.theirs + kLine, count);
    Py_RETURN_NONE;
}

PyMethodDef definition{"bare", carry_out, METH_NOARGS, nullptr};

}  // namespace

extern "C" {

// A function without arguments that makes the call. `call` outlives it.
PyObject* bare(Call* call) {
    PyObject* capsule = PyCapsule_New(call, nullptr, nullptr);
    if (capsule == nullptr) return nullptr;
    PyObject* found = PyCFunction_New(&definition, capsule);
    Py_DECREF(capsule);
    return found;
}

// Maps memory that another process shares where huge pages can be mapped as such; null if it cannot. `offset` and
// `bytes` are multiples of 2 MB.
void* reach(const char* path, std::size_t offset, std::size_t bytes) {
    constexpr std::size_t kHuge = std::size_t(2) << 20;
    const int file = open(path, O_RDWR);
    if (file < 0) return nullptr;
    void* space = mmap(nullptr, bytes + kHuge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    void* found = MAP_FAILED;
    if (space != MAP_FAILED) {
        void* at = reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(space) + kHuge - 1) / kHuge * kHuge);
        found = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, off_t(offset));
    }
    close(file);
    return found == MAP_FAILED ? nullptr : found;
}

// Every rank counts its own arrivals and waits until all others have as many.
void barrier(std::int64_t* arrivals, int rank, int ranks) {
    const std::int64_t mine = __atomic_load_n(&arrivals[rank * kLine], __ATOMIC_RELAXED) + 1;
    __atomic_store_n(&arrivals[rank * kLine], mine, __ATOMIC_RELEASE);  // partner: the load below, in the other ranks
    for (int other = 0; other < ranks; ++other) {
        for (int spins = 0; __atomic_load_n(&arrivals[other * kLine], __ATOMIC_ACQUIRE) < mine; ++spins) {
            if (spins < kSpins) {
                relax();
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
