// Memory orders of a CPU, and which of them publish and observe what ranks say in the control region.
//
// Every order can be weakened by its name in a build of the native tests with -DHOCKET_RELAX, for those that show that
// it is needed (tests/native/run_sanitizers.sh). A publish and its observe are one pair; relaxing either side breaks
// it.
#pragma once

#include "core/plan.h"

namespace hocket {

#ifdef HOCKET_RELAX
inline const char* weakened = "";  // set before there are ranks
inline bool is_weakened(const char* name) { return __builtin_strcmp(name, weakened) == 0; }
#else
constexpr bool is_weakened(const char*) { return false; }
#endif

template <int order> void store_word(const char* name, u64* at, u64 value) {
    if (is_weakened(name)) __atomic_store_n(at, value, __ATOMIC_RELAXED);
    else __atomic_store_n(at, value, order);
}
template <int order> u64 load_word(const char* name, const u64* at) {
    return is_weakened(name) ? __atomic_load_n(at, __ATOMIC_RELAXED) : __atomic_load_n(at, order);
}

// The call header: its fields, and all that its rank did in earlier calls. Also part of going to sleep.
inline void publish_header(u64* call, u64 value) {  // pairs with observe_header
    store_word<__ATOMIC_SEQ_CST>("HEADER_PUBLISH", call, value);
}
inline u64 observe_header(const u64* call) {  // pairs with publish_header
    return load_word<__ATOMIC_SEQ_CST>("HEADER_OBSERVE", call);
}

// The end of a call in two rounds: what a rank has read and written in buffers of others. Part of going to sleep too.
inline void publish_done(u64* done, u64 call) {  // pairs with observe_done
    store_word<__ATOMIC_SEQ_CST>("DONE_PUBLISH", done, call);
}
inline u64 observe_done(const u64* done) {  // pairs with publish_done
    return load_word<__ATOMIC_SEQ_CST>("DONE_OBSERVE", done);
}

// Why a rank failed or left: `culprit` and `text`. Looked for between sleeps: a lost wake-up only costs one.
inline void publish_state(u64* state, u64 value) {  // pairs with observe_state
    store_word<__ATOMIC_RELEASE>("STATE_PUBLISH", state, value);
}
inline u64 observe_state(const u64* state) {  // pairs with publish_state
    return load_word<__ATOMIC_ACQUIRE>("STATE_OBSERVE", state);
}

}  // namespace hocket
