// The device of ranks on the CPUs of one machine, and their port: which atomic operation each synchronisation of the
// interpreter and of fifos is.
#pragma once

#include "device/atomics.h"
#include "policy/distance.h"
#include "transport/cma.h"
#include "transport/fifo.h"

namespace hocket {

struct Cpu {
    Kernel kernel;
    RankBlock* control;
    u32 rank;
    bool together;                     // several threads drive the thread blocks of this rank
    bool streams;                      // results that may be are stored non-temporally
    CmaCopies* copies = nullptr;       // in a call with attached buffers
    const Scale* scale = nullptr;      // of an average, in the steps that are `whole`
    const Distance* others = nullptr;  // by rank, where some are apart
    u64 apart_copied_bytes = 0;        // of a message to one that is, from which on it is stored non-temporally, if
    u64 apart_combined_bytes = 0;      // that rank copies it, or combines it
    u64 ahead_bytes = 0;       // that kernels prefetch ahead in a call that `streams`: its buffers are in no cache
    u64 copy_ahead_bytes = 0;  // that long copies prefetch what they store to; 0: memcpy copies
    Traffic moved{};           // by the kernel calls so far

    void reduce(char* const* dsts, u32 m, char* const* srcs, u32 k, u64 bytes, Streamable some, bool whole) {
        moved.loaded += k * bytes;
        moved.stored += m * bytes;
        const u32 streamed = (streams ? some.results : 0) | (bytes >= apart_copied_bytes ? some.copied : 0) |
                             (bytes >= apart_combined_bytes ? some.combined : 0);
        kernel(dsts, m, srcs, k, bytes,
               {streamed, streams ? ahead_bytes : 0, copy_ahead_bytes, whole ? scale : nullptr});
    }

    void reduce_attached(const Room& room, u32 sources, u32 used, u64 bytes, bool whole) {
        copies->reduce(kernel, {.scale = whole ? scale : nullptr}, room, sources, used, bytes, moved);
    }

    // Non-temporal stores are not ordered by the releases below. A result that is stored so no step of any rank reads
    // or writes after. Where that is this rank's own memory, only the end of the call says that it is there: each
    // thread drains its own stores before it goes on to whatever lets another read them, the mutex of its team or queue
    // (team.cpp) or what the caller does next. A message, and what lies in memory of a peer, whose call may end once it
    // is told, the step drains before it tells. Its own loads need no fence.
    void drain() const {
#if defined(__SSE2__)
        if (streams || others != nullptr) __builtin_ia32_sfence();
#endif
    }

    bool is_apart(u32 peer) const { return others != nullptr && others[peer].far(); }

    void wake(u32 peer) { ring(control[peer].bell); }

    void begins() {}  // nobody watches; see WatchedCpu
    void executed(u32, u32, u64) {}
    void stalls() {}

    // Slots. Sequentially consistent because `wake` then looks whether the peer sleeps (waiting.h); as acquire and
    // release they carry the bytes of the slot.
    static void publish_filled(u64* counter, u64 value) {  // pairs with observe_filled
        store_word<__ATOMIC_SEQ_CST>("FILLED_PUBLISH", counter, value);
    }
    static u64 observe_filled(const u64* counter) {  // pairs with publish_filled
        return load_word<__ATOMIC_SEQ_CST>("FILLED_OBSERVE", counter);
    }
    static void publish_freed(u64* counter, u64 value) {  // pairs with observe_freed
        store_word<__ATOMIC_SEQ_CST>("FREED_PUBLISH", counter, value);
    }
    static u64 observe_freed(const u64* counter) {  // pairs with publish_freed
        return load_word<__ATOMIC_SEQ_CST>("FREED_OBSERVE", counter);
    }

    // Semaphores stay inside a rank. A thread sleeps on them only if there is another that could publish them.
    void publish_semaphore(u64* semaphore, u64 value) {  // pairs with observe_semaphore
        if (together) {
            store_word<__ATOMIC_SEQ_CST>("SEMAPHORE_PUBLISH", semaphore, value);
            ring(control[rank].bell);
        } else {
            store_word<__ATOMIC_RELEASE>("SEMAPHORE_PUBLISH", semaphore, value);
        }
    }
    static u64 observe_semaphore(const u64* semaphore) {  // pairs with publish_semaphore
        return load_word<__ATOMIC_SEQ_CST>("SEMAPHORE_OBSERVE", semaphore);
    }
};

// Ranks that run on the CPUs of one machine share memory.
using End = Fifo<Cpu>;
static_assert(AttachingDevice<Cpu> && FifoDevice<Cpu> && Port<End, Cpu> && ZeroCopyPort<End> && EagerPort<End>);

}  // namespace hocket
