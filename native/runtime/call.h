// What a communicator is asked: a call, and how it is to go about calls.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "policy/select.h"
#include "protocol/control_plane.h"
#include "runtime/recorder.h"
#include "transport/network.h"

namespace hocket {

class Plan;

// Units of lengths of their own. `bounds`: of those of the input and of the output, in bytes (interpreter.h). `digest`
// is that of the lengths of all, the same on every rank. Without, they are pairwise: a rank knows those of its own,
// what it sends to each rank and what it gets from each. `text` is for errors.
struct Units {
    std::vector<u64> bounds[2];
    std::optional<u64> digest;
    std::string text;
};

// What a call can do instead, if all ranks can: the plans for buffers that others access, by variant, null where they
// do not lie so; and these buffers. A plan that lends is offered for itself.
struct Offer {
    Plan* plans[kVariants] = {};
    char* input = nullptr;
    char* output = nullptr;
};

// What is left to do with the `result` of a call, null where it is neither taken nor an average. After a call through
// slots it is copied from `taken`, if that is not null; on any other way it was made where it belongs. An average is
// scaled, where no step has done that.
struct Finish {
    char* result = nullptr;
    u64 bytes = 0;
    const char* taken = nullptr;
};

// What a call took a rank, in ticks: `took`, without those until the last rank had entered, 0 until it has ended.
// `begun`: from when on that counts; 0: from when it is run.
struct Watch {
    u64 begun = 0, took = 0;
};

// What a call works on. `n` elements a unit; `tile` 0: chosen from the size, as for other plans that are offered. A
// rank with neither input nor output does not know n and the type. `initial_bytes` from `initial` are copied to
// `initial_to` first, once all ranks agree. With `units`, n is the length of the largest: of all, or of those of this
// rank where they are pairwise. `element` says what elements are whose type kernels do not know, or what is made of a
// sum that is not an average but has its operator; else it is null. `scale`: of those two. `watch`: null for a call
// that is not timed.
struct Call {
    char* input;
    char* output;
    const char* initial;
    char* initial_to;
    u64 initial_bytes;
    u64 n;
    u64 tile;
    u32 type;
    u32 op;
    bool size_known;
    const Units* units = nullptr;
    const Offer* offer = nullptr;
    Plan* counted = nullptr;  // of an exchange without `units`: what it runs with them, where other ranks have some
    bool fresh = false;       // the output has just been allocated: it has no pages yet
    const std::string* element = nullptr;
    const Scale* scale = nullptr;
    Finish finish{};
    Watch* watch = nullptr;
    double timeout = 0;  // as in Settings, for this call; 0: that of the communicator
};

// Whether messages lie in private memory of other ranks, by cross-memory attach, which all ranks must be able to do:
// never, where tunables say that it is faster, or in every call that can go so.
enum class CmaUse { kNever, kWhereFaster, kAlways };

// What is tuned of its WaitPolicy follows from `tunables`.
struct Settings : WaitPolicy {
    u32 threads = 1;            // that share the thread blocks of a call
    u64 team_bytes = 0;         // of its larger buffer, from which on they do
    u64 cache_bytes = ~u64(0);  // of all ranks together: a call that touches more stores results non-temporally
    // Whether a byte is in no cache that is nearer than so many ticks: a call all of whose are does so too, where that
    // is worth it, and others attach to private ones seldom.
    bool (*is_far)(const char*, u64) = nullptr;
    CmaUse cma_use = CmaUse::kNever;
    bool crowded = false;          // ranks share cores
    u64 first = 0;                 // the number of calls so far; tests begin near where it wraps
    Recorder* recorder = nullptr;  // of what this rank does; outlives the communicator
    Network* network = nullptr;    // to ranks of other nodes; outlives the communicator
    Tunables tunables = tunables_with({});
};

// A plan, the buffers that it would run on, and how. Null for none: then the rest has no values.
struct Candidate : Shape {
    Plan* plan;
    char* input;
    char* output;
    Kernel kernel;
};

// How a plan would run by itself: whether in one round, the fewest bytes of a rank's larger buffer, if it is in a
// cache and in huge pages, with which its buffers would be offered to others, the bytes that it would touch on all
// ranks, whether that is more than the caches hold, so that it stores non-temporally, and how many threads it would
// take.
struct Outlook : Shape {
    bool one_round;
    u64 attached_bytes;
    u64 touched;
    bool streams;
    u32 threads;
};

// The candidates of a call, by variant.
using Candidates = Candidate[kVariants];

}  // namespace hocket
