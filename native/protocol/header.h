// The call header: what a rank says when it enters a call, in its block of the control region.
//
// The control region is an array of one block a rank, each written by its rank alone but for the bell, followed by the
// eager areas. The blocks of other nodes' ranks are copies (nodes.h).
#pragma once

#include <algorithm>
#include <bit>

#include "core/plan.h"
#include "protocol/waiting.h"

namespace hocket {

// A hash of words, the same on all ranks: SplitMix64 (Steele, Lea and Flood, OOPSLA'14).
inline u64 mix(u64 x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

// The digests of calls that exchange words: 0 is that of a barrier, and no schedule has any of these.
constexpr u64 kSplit = 1;
constexpr u64 kAdopt = 2;
constexpr u64 kUse = 3;
constexpr u64 kLook = 4;

constexpr u64 kInlined = 48;
constexpr u64 kNowhere = ~u64(0);       // of an address outside of the arena
constexpr u64 kAdopted = u64(1) << 56;  // places from here on lie in adopted memory, not in the arena itself
constexpr u64 kEager = 16 << 10;        // bytes of a rank's messages up to which a call can take one round, on one node
constexpr u64 kExchanged = 512 << 10;   // and on several: bytes of the messages of all ranks together
constexpr u64 kMostEager = 128 << 10;   // and of those of one rank
constexpr u64 kUsuallyExchanged = 120 << 10, kUsuallyEager = 32 << 10;  // the same where nobody has asked for one round
constexpr u64 kAtOnce = 62 << 10;      // of a message between nodes: what MPIs send at once over TCP is less than 64 KB
constexpr u64 kLeastApart = 16 << 10;  // bytes of an eager area, from which on what is longer goes in messages apart
constexpr u64 kMostRotated = 256 << 20;  // bytes of the eager areas of all ranks that messages rotate through
constexpr u64 kCallsAnArea = 64;         // of a communicator, for each of them that is in use

// What all ranks must say alike, but for what `flags` excuse. `counts` is equal on all ranks or, pairwise, adds up to 0
// (call.h: Units). `element` is a hash of what elements are, where kernels do not know their type, or of what
// is made of a sum.
struct Terms {
    u64 digest = 0;
    u64 n = 0;
    u64 tile = 0;
    u64 counts = 0;
    u32 type = 0;
    u32 op = 0;
    u32 flags = 0;
    u32 element = 0;
    bool operator==(const Terms&) const = default;
};

// The programs that a call can run: one through buffers of the library, eager or fifo, and zero-copy ones, for arrays
// that all ranks can access, which are in place on every rank or apart.
enum Variant : u32 { kBuffered = 0, kInPlace = 1, kApart = 2, kVariants = 3 };
constexpr Variant kZeroCopy[] = {kInPlace, kApart};  // the better one first

// A rank's buffers, for others to access in this call.
struct BufferDescription {
    u32 variants;         // a bit for each Variant that these buffers are for
    bool is_private;      // they are addresses in the rank's process, not places in its arena
    bool in_small_pages;  // private ones: attached to only where most ranks' do not lie so
    u64 input, output;    // kNowhere for none
    u64 end;              // nothing lies beyond it in the arena
    u64 since;            // when it said so, in ticks, where they are private
};
static_assert(sizeof(BufferDescription) <= kInlined);

// What a rank says when it enters a call. `call` is stored last. Of ranks that agree, in a call that is not timed,
// nobody reads more than the first cache line: where `signature`, a hash of the terms, is the same, so are the terms.
// `timed`: the latest call that the rank has timed, and when it entered that. `text` is the schedule's name, on a
// second line the counts, on a third what `element` stands for; a word to exchange; or why it refuses.
struct CallHeader {
    alignas(kLine) u64 call;
    u64 signature;
    union {
        char inlined[kInlined];     // a message to all others, so short that it takes no other line
        BufferDescription buffers;  // else; not the same on all ranks
    };
    struct {
        u64 call, ticks;
    } timed;
    alignas(kLine) Terms terms;
    char text[1024 - kLine - sizeof(Terms)];
};
static_assert(sizeof(CallHeader) == 1024);

enum CallFlag : u32 {
    kRefused = 1,      // this rank's arguments are wrong
    kSizeUnknown = 2,  // it has neither input nor output: others say n and the type
    kCounted = 4,      // units have lengths of their own
    kPairwise = 8,     // and a rank knows only its own: n is the largest of those
    kDeclined = 16,    // this rank would rather not make the call: no rank does
};
constexpr u32 kUnits = kCounted | kPairwise;
// Of which ranks have to look at more than whether they say the same.
constexpr u32 kExcuses = kRefused | kDeclined | kSizeUnknown | kPairwise;

// Whether ranks that say the same read more of each other's headers than the first line.
inline bool says_more(const Terms& terms) {
    return (terms.flags & kExcuses) != 0 || (kSplit <= terms.digest && terms.digest <= kLook);
}

// kLeft, kFailed: from call `since` on. kAborted: every call.
enum State : u64 { kRunning = 0, kLeft = 1, kFailed = 2, kAborted = 3 };

// In which calls ranks touch a line of theirs, for others to time how long it takes to them (policy/distance.h).
constexpr u64 kCallsBetweenTouches = 17;
inline bool touches(u64 call) { return call % kCallsBetweenTouches == 0; }

// The part of the control region that one rank writes, but for `bell`, which others lower and strike.
struct RankBlock {
    CallHeader headers[2];    // by parity of the call number
    alignas(kLine) u64 done;  // the latest call in two rounds that this rank has done its part of
    alignas(kLine) Bell bell;
    alignas(kLine) u64 touched;  // the latest call in which this rank stored to this line, for others to time
    alignas(kLine) u64 looked;   // until when this rank is known to have waited, in nanoseconds, and for whom: hints
    u64 peer;                    // that tell who holds up the ranks that wait for one that waits itself
    u64 eager[2];                // for other nodes, by parity of the call: bytes in the eager area
    alignas(kLine) u64 state;    // stored after the rest
    u64 culprit;                 // the rank whose fault it is
    u64 since;                   // the first call that it ends: the others may still finish those before
    u64 claimed;                 // of a rank of another node: a rank of this one stores, or has stored, the above
    u64 sent_at;                 // of a node's first rank: when an emulated network has sent what the node has given it
    u64 gone;                    // its process has ended, as some rank of this node has seen or heard
    char text[1024 - 48];
};

// Behind the blocks of all ranks lies what each sends in a call in one round: stored before its header, for good. It
// has two areas, as there are two headers: others may still read that of the call before (control_plane.h:
// `await_all`).
constexpr u64 eager_area_bytes(u32 ranks, bool on_several_nodes) {
    return on_several_nodes ? std::min(std::bit_floor(kExchanged / ranks), kMostEager) : kEager;
}
constexpr u64 control_bytes(u32 ranks, bool on_several_nodes) {
    return ranks * (sizeof(RankBlock) + 2 * eager_area_bytes(ranks, on_several_nodes));
}
inline char* eager_area(RankBlock* control, u32 ranks, u64 area_bytes, u32 rank, u64 call) {
    return reinterpret_cast<char*>(control + ranks) + (2 * rank + call % 2) * area_bytes;
}

// The most bytes of its messages that a rank sends eagerly. `is_asked`: in a tile as long as a chunk.
inline u64 most_eager(u32 ranks, bool is_pairwise, bool on_several_nodes, bool is_asked) {
    if (is_pairwise) return 0;
    if (!on_several_nodes || is_asked) return eager_area_bytes(ranks, on_several_nodes);
    return std::min(kUsuallyEager, kUsuallyExchanged / ranks);
}

}  // namespace hocket
