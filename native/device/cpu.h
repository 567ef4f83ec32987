// The device of ranks on CPUs: which atomic operation each synchronisation of the interpreter and of fifos is.
//
// Every order below can be weakened by a macro of its name, -DHOCKET_RELAX_..., for the tests that show that it is
// needed (tests/native). A publish and its observe are one pair; relaxing either side breaks it.
#pragma once

#include "transport/cma.h"

#define HOCKET_STRONG_0(order) order
#define HOCKET_STRONG_1(order) __ATOMIC_RELAXED
#define HOCKET_PICK_(relaxed, order) HOCKET_STRONG_##relaxed(order)
#define HOCKET_PICK(relaxed, order) HOCKET_PICK_(relaxed, order)
#ifndef HOCKET_RELAX_FILLED_PUBLISH
#define HOCKET_RELAX_FILLED_PUBLISH 0
#endif
#ifndef HOCKET_RELAX_FILLED_OBSERVE
#define HOCKET_RELAX_FILLED_OBSERVE 0
#endif
#ifndef HOCKET_RELAX_FREED_PUBLISH
#define HOCKET_RELAX_FREED_PUBLISH 0
#endif
#ifndef HOCKET_RELAX_FREED_OBSERVE
#define HOCKET_RELAX_FREED_OBSERVE 0
#endif
#ifndef HOCKET_RELAX_SEMAPHORE_PUBLISH
#define HOCKET_RELAX_SEMAPHORE_PUBLISH 0
#endif
#ifndef HOCKET_RELAX_SEMAPHORE_OBSERVE
#define HOCKET_RELAX_SEMAPHORE_OBSERVE 0
#endif
#ifndef HOCKET_RELAX_HEADER_PUBLISH
#define HOCKET_RELAX_HEADER_PUBLISH 0
#endif
#ifndef HOCKET_RELAX_HEADER_OBSERVE
#define HOCKET_RELAX_HEADER_OBSERVE 0
#endif
#ifndef HOCKET_RELAX_STATE_PUBLISH
#define HOCKET_RELAX_STATE_PUBLISH 0
#endif
#ifndef HOCKET_RELAX_STATE_OBSERVE
#define HOCKET_RELAX_STATE_OBSERVE 0
#endif

#ifndef HOCKET_RELAX_DONE_PUBLISH
#define HOCKET_RELAX_DONE_PUBLISH 0
#endif
#ifndef HOCKET_RELAX_DONE_OBSERVE
#define HOCKET_RELAX_DONE_OBSERVE 0
#endif

// A rank ends a call without waiting for those who read what it has lent.
#ifndef HOCKET_RELAX_READERS
#define HOCKET_RELAX_READERS 0
#endif

namespace hocket {

// Which of the results that may be stored past the caches are: none; sums all of whose destinations may, since copies,
// and what is stored block by block, have other means to store a line without fetching it (kernels.cpp); all.
enum class Past : u32 { kNothing = 0, kSums = 1, kAll = 2 };

// What is fast where messages lie in slots, or in arrays. `sums`, `copies`: from how many bytes of a rank's larger
// buffer on it pays to store past the caches, where the buffers are in none. `manner`: of long calls of a kernel.
struct Habits {
    u64 sums, copies;
    Manner manner;
    Past past(u64 bytes) const { return bytes >= copies ? Past::kAll : bytes >= sums ? Past::kSums : Past::kNothing; }
};

// Whether a byte is in no cache near this core, to go by whether it takes more than `near` ticks to load it. Never,
// where no clock is as fine. Another rank may be storing there: the value is not used.
inline bool is_far(const char* at, u64 near) {
#if defined(__SSE2__)
    __builtin_ia32_lfence();
    const u64 begin = __builtin_ia32_rdtsc();
    __builtin_ia32_lfence();
    (void)*static_cast<const volatile char*>(at);
    __builtin_ia32_lfence();
    return __builtin_ia32_rdtsc() - begin > near;
#else
    (void)at;
    (void)near;
    return false;
#endif
}

struct Cpu {
    Kernel kernel;
    RankBlock* control;
    u32 rank;
    bool together;  // several threads drive the thread blocks of this rank
    Past past;
    Manner manner;
    Reach* beyond = nullptr;  // in a call that reaches private memory of others
    Traffic moved{};          // by the kernel calls so far

    void reduce(char* const* dsts, u32 m, char* const* srcs, u32 k, u64 bytes, u32 last) {
        moved.loaded += k * bytes;
        moved.stored += m * bytes;
        const bool allowed = past == Past::kAll || (past == Past::kSums && k > 1 && last == all_of(m));
        kernel(dsts, m, srcs, k, bytes, allowed ? last : 0, manner);
    }

    void reach(const Room& room, u32 sources, u32 used, u64 bytes) {
        beyond->reduce(kernel, manner, room, sources, used, bytes, moved);
    }

    // Stores past the caches are not ordered by the releases below. What is stored so belongs to one step alone, no
    // step of any rank reads or writes it after. Where that is this rank's own memory, only the end of the call says
    // that it is there: each thread drains its own stores before it goes on to whatever lets another read them, the
    // mutex of its team or queue (team.cpp) or what the caller does next. Where it is memory of a peer, whose call may
    // end once it is told, the step drains them before it tells. Its own loads need no fence.
    void drain() const {
#if defined(__SSE2__)
        if (past != Past::kNothing) __builtin_ia32_sfence();
#endif
    }

    void wake(u32 peer) { ring(control[peer].bell); }

    void begins() {}  // nobody watches; see WatchedCpu
    void executed(u32, u32, u64) {}
    void stalls() {}

    // Slots. Sequentially consistent because `wake` then looks whether the peer sleeps (waiting.h); as acquire and
    // release they carry the bytes of the slot.
    static void publish_filled(u64* counter, u64 value) {  // pairs with observe_filled
        __atomic_store_n(counter, value, HOCKET_PICK(HOCKET_RELAX_FILLED_PUBLISH, __ATOMIC_SEQ_CST));
    }
    static u64 observe_filled(const u64* counter) {  // pairs with publish_filled
        return __atomic_load_n(counter, HOCKET_PICK(HOCKET_RELAX_FILLED_OBSERVE, __ATOMIC_SEQ_CST));
    }
    static void publish_freed(u64* counter, u64 value) {  // pairs with observe_freed
        __atomic_store_n(counter, value, HOCKET_PICK(HOCKET_RELAX_FREED_PUBLISH, __ATOMIC_SEQ_CST));
    }
    static u64 observe_freed(const u64* counter) {  // pairs with publish_freed
        return __atomic_load_n(counter, HOCKET_PICK(HOCKET_RELAX_FREED_OBSERVE, __ATOMIC_SEQ_CST));
    }

    // Semaphores stay inside a rank. A thread sleeps on them only if there is another that could publish them.
    void publish_semaphore(u64* semaphore, u64 value) {  // pairs with observe_semaphore
        if (together) {
            __atomic_store_n(semaphore, value, HOCKET_PICK(HOCKET_RELAX_SEMAPHORE_PUBLISH, __ATOMIC_SEQ_CST));
            ring(control[rank].bell);
        } else {
            __atomic_store_n(semaphore, value, HOCKET_PICK(HOCKET_RELAX_SEMAPHORE_PUBLISH, __ATOMIC_RELEASE));
        }
    }
    static u64 observe_semaphore(const u64* semaphore) {  // pairs with publish_semaphore
        return __atomic_load_n(semaphore, HOCKET_PICK(HOCKET_RELAX_SEMAPHORE_OBSERVE, __ATOMIC_SEQ_CST));
    }

    // The call header: its fields, and all that its rank did in earlier calls. Also part of going to sleep.
    static void publish_header(u64* call, u64 value) {  // pairs with observe_header
        __atomic_store_n(call, value, HOCKET_PICK(HOCKET_RELAX_HEADER_PUBLISH, __ATOMIC_SEQ_CST));
    }
    static u64 observe_header(const u64* call) {  // pairs with publish_header
        return __atomic_load_n(call, HOCKET_PICK(HOCKET_RELAX_HEADER_OBSERVE, __ATOMIC_SEQ_CST));
    }

    // The end of a call in two rounds: what a rank has read and written in buffers of others. Part of going to sleep
    // too.
    static void publish_done(u64* done, u64 call) {  // pairs with observe_done
        __atomic_store_n(done, call, HOCKET_PICK(HOCKET_RELAX_DONE_PUBLISH, __ATOMIC_SEQ_CST));
    }
    static u64 observe_done(const u64* done) {  // pairs with publish_done
        return __atomic_load_n(done, HOCKET_PICK(HOCKET_RELAX_DONE_OBSERVE, __ATOMIC_SEQ_CST));
    }

    // Why a rank failed or left: `culprit` and `text`. Looked for between sleeps, so that a lost wake-up only costs
    // one.
    static void publish_state(u64* state, u64 value) {  // pairs with observe_state
        __atomic_store_n(state, value, HOCKET_PICK(HOCKET_RELAX_STATE_PUBLISH, __ATOMIC_RELEASE));
    }
    static u64 observe_state(const u64* state) {  // pairs with publish_state
        return __atomic_load_n(state, HOCKET_PICK(HOCKET_RELAX_STATE_OBSERVE, __ATOMIC_ACQUIRE));
    }
};

// Ranks that run on the CPUs of one machine share memory.
using End = Fifo<Cpu>;
template <Device D, Port<D> P = Fifo<D>> class Execution;

}  // namespace hocket
