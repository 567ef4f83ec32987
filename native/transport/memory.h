// What ranks share: one file without a name, mapped piece by piece.
//
// The file is sparse and very large: a control region, then a window at a fixed place for every connection there could
// be, (source, destination, channel). So no rank has to agree with another on an allocation, memory is reused from one
// schedule to the next, and a window that grows stays where it is. A file that is no memfd grows to its last window.
#pragma once

#include <sys/types.h>
#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <vector>

#include "protocol/waiting.h"
#include "transport/fifo.h"

namespace hocket {

constexpr u64 kPage = 4096;
constexpr u64 kHugePage = 2 << 20;
constexpr u64 kWindowStride = u64(1) << 30;  // the most a window can hold
constexpr u64 kMostWindows = u64(1) << 24;
constexpr u64 kFileBytes = (kMostWindows + 1) * kWindowStride;
constexpr u64 kPlans = kWindowStride / 2;      // from where on ranks share plans (hocket/runtime/plan_cache.py)
constexpr u64 kStamp = kWindowStride - kPage;  // where the file says which meeting it is of

// The digest of a call that exchanges words; 0 is that of a barrier, and a schedule has neither.
constexpr u64 kExchange = 1;

constexpr u64 kInlined = 48;
constexpr u64 kNowhere = ~u64(0);  // of an address outside of the arena
constexpr u64 kEager = 16 << 10;   // bytes of a rank's messages up to which a call can take one round

// What all ranks must say alike, but for what `flags` excuse. `counts` is equal on all ranks or, pairwise, adds up to 0
// (communicator.h: Units). `element` is a hash of what elements are, where kernels do not know their type.
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

// What a call took a rank, in sixteenths of ticks: until it had said that it enters, and from when all had, 0 if it did
// not measure. `far`: its buffers were, or, if it did not look, those of all were when they looked last.
struct Took {
    u32 before, after;
    u32 far;
};

// Where a rank's buffers lie in its arena, kNowhere for none and none beyond `end`, and which ways a call can go with
// them: a bit for each `Way`. Where they are `reached`, since not all lie in the arena, these are addresses in the
// rank's process, and `end` is when it said so, in ticks. `contested`: the rank goes the way that has been faster;
// `took`: what its latest call took in which any rank did.
struct Places {
    u32 ways;
    u32 reached;
    u64 input;
    u64 output;
    u64 end;
    u32 contested;
    Took took;
};
static_assert(sizeof(Places) <= kInlined);

// What a rank says when it enters a call. `call` is stored last. Of ranks that agree nobody reads more than the first
// cache line: where `signature`, a hash of the terms, is the same, so are the terms. `text` is the schedule's name, on
// a second line the counts, on a third what elements are; a word to exchange; or why it refuses.
struct CallHeader {
    alignas(kLine) u64 call;
    u64 signature;
    union {
        char inlined[kInlined];  // in one round: a message to all others, so short that it takes no other line
        Places places;           // else; not the same on all ranks
    };
    alignas(kLine) Terms terms;
    char text[1024 - kLine - sizeof(Terms)];
};
static_assert(sizeof(CallHeader) == 1024);

enum CallFlag : u32 {
    kRefused = 1,      // this rank's arguments are wrong
    kSizeUnknown = 2,  // it has neither input nor output: others say n and the type
    kCounted = 4,      // units have lengths of their own
    kPairwise = 8,     // and a rank knows only its own: n is the largest of those
};

// kFailed: from call `since` on. kAborted: every call.
enum State : u64 { kRunning = 0, kLeft = 1, kFailed = 2, kAborted = 3 };

// The part of the control region that one rank writes, but for `bell`, which others lower and strike.
struct RankBlock {
    CallHeader headers[2];    // by parity of the call number
    alignas(kLine) u64 done;  // the latest call in two rounds that this rank has done its part of
    alignas(kLine) Bell bell;
    alignas(kLine) u64 looked;  // when this rank was last found waiting, in nanoseconds, and for whom: only hints,
    u64 peer;                   // to tell who holds up the ranks that wait for one that waits itself
    alignas(kLine) u64 state;   // stored after the rest
    u64 culprit;                // the rank whose fault it is
    u64 since;                  // the first call that it ends: the others may still finish those before
    char text[1024 - 24];
};

// Behind the blocks of all ranks lies what each sends in a call in one round: stored before its header, for good. It
// has several areas and takes them in turns, as a line that others have just read is slow to store to: so many that
// those of all ranks take at most half a megabyte, but two at least. Few bytes take two: they wait for few lines, which
// by the third area are no longer close to the sender. Either number is even: so a call never takes the area of the one
// before, which others may still read (communicator.cpp: `enter`), also where short messages and long ones alternate.
constexpr u64 kEagerAreasBytes = 512 << 10, kLeastEagerAreas = 2, kMostEagerAreas = 16, kFewBytes = 4 << 10;
constexpr u64 eager_areas(u32 ranks) {
    return std::clamp(std::bit_floor(kEagerAreasBytes / kEager / ranks), kLeastEagerAreas, kMostEagerAreas);
}
constexpr u64 control_bytes(u32 ranks) { return ranks * (sizeof(RankBlock) + eager_areas(ranks) * kEager); }
inline char* eager_area(RankBlock* control, u32 ranks, u32 rank, u64 call, u64 bytes) {
    const u64 areas = eager_areas(ranks), used = bytes <= kFewBytes ? kLeastEagerAreas : areas;
    return reinterpret_cast<char*>(control + ranks) + (rank * areas + call % used) * kEager;
}

struct Window {
    Counters* counters = nullptr;  // slots follow on the next page
    u64 bytes = 0;
    u64 passed = 0;  // of a multicast: messages so far, whether or not this rank read them
    char* slots() const { return reinterpret_cast<char*>(counters) + kPage; }
};

class Memory {
  public:
    virtual ~Memory() = default;
    virtual RankBlock* control() = 0;
    // The window of a connection. It keeps its address as an object; `reserve` fills it.
    virtual Window* window(u32 source, u32 destination, u32 channel) = 0;
    // Makes the window hold `bytes` of slots. Returns 0 or an errno.
    virtual int reserve(Window* window, u64 bytes) = 0;
    // Where in this rank's arena an address lies, or kNowhere.
    virtual u64 place(const char* at) const = 0;
    // After a call that failed: others may still access what lies at this place of this rank's arena.
    virtual void keep(u64 place) = 0;
    // The arena of another rank, of which the first `bytes` can be used until this is called again. Null, with errno,
    // where it cannot be mapped.
    virtual char* arena(u32 rank, u64 bytes) = 0;
    // Copies from, or to, memory of another rank that is in no arena. Returns 0 or an errno.
    virtual int pull(u32 rank, const char* theirs, char* mine, u64 bytes) = 0;
    virtual int push(u32 rank, char* theirs, const char* mine, u64 bytes) = 0;
    // Whether others can do so from, and to, this memory of this rank, the kernel can not from all that a process maps;
    // and whether this rank still may do so itself.
    virtual bool reachable(const char* mine, u64 bytes) const = 0;
    // Whether this rank's process is still open to others, as it was when the ranks met.
    virtual bool open() const = 0;
};

// Copies between this process's memory and another's. Returns 0 or an errno.
int pull_from(pid_t process, const char* theirs, char* mine, u64 bytes);
int push_to(pid_t process, char* theirs, const char* mine, u64 bytes);

u64 whole_pages(u64 bytes);

// Makes sure that the pages are there: a full memory is an error now rather than a SIGBUS later. Not posix_fallocate,
// which writes to the pages where the file system cannot do it, while another rank does. Returns 0 or an errno.
int reserve(int descriptor, u64 place, u64 bytes);

class Arena;

// Maps the memory at a place of an arena, both multiples of kHugePage, so that huge pages are mapped as such. Null,
// with errno, where it cannot.
char* map_arena(int descriptor, u64 place, u64 bytes);

// Makes sure that there is memory for the control region of so many ranks. Returns 0 or an errno.
int reserve_control(int descriptor, u32 ranks);

// Memory in a file that other processes map too (hocket/runtime/segments.py).
class SharedMemory final : public Memory {
  public:
    // Takes the descriptors over, also where it throws std::system_error. Who made the file has reserved the control
    // region: ranks that all did so at once would wait for each other in the kernel. `arenas`: those of all ranks, -1
    // for the own, which is `own`; none where there is one rank. `processes`: of all ranks, none where they cannot
    // reach each other's memory.
    SharedMemory(int descriptor, u32 ranks, std::vector<int> arenas, Arena& own, std::vector<pid_t> processes);
    ~SharedMemory() override;
    SharedMemory(const SharedMemory&) = delete;
    SharedMemory& operator=(const SharedMemory&) = delete;

    RankBlock* control() override { return control_; }
    Window* window(u32 source, u32 destination, u32 channel) override;
    int reserve(Window* window, u64 bytes) override;
    u64 place(const char* at) const override;
    void keep(u64 place) override;
    char* arena(u32 rank, u64 bytes) override;
    int pull(u32 rank, const char* theirs, char* mine, u64 bytes) override;
    int push(u32 rank, char* theirs, const char* mine, u64 bytes) override;
    bool reachable(const char* mine, u64 bytes) const override;
    bool open() const override;

  private:
    struct Mapping : Window {
        u64 place;  // in the file
    };
    struct Neighbour {
        int descriptor;
        char* base;
        u64 bytes;
    };

    void close();

    int descriptor_;
    u32 ranks_;
    u64 control_bytes_;
    RankBlock* control_;
    std::map<u64, std::unique_ptr<Mapping>> mappings_;
    std::vector<Neighbour> neighbours_;  // by rank
    Arena& own_;
    const std::vector<pid_t> processes_;
};

}  // namespace hocket
