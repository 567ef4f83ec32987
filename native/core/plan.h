// The plan: one rank's part of a schedule as flat 32-bit words. This file is the one home of its layout.
//
// A plan holds numbers of chunks only; sizes, types, operators and addresses belong to a call. The words are, in order:
// one header, then the tables of thread blocks, steps, operands, waits, connections and multicasts. Python packs
// records by the field names below, which the bindings export, so that nothing is written down twice. No standard
// headers, as in all of the core: other devices' compilers may have none.
#pragma once

namespace hocket {

using u32 = unsigned int;
using u64 = unsigned long long;
static_assert(sizeof(u32) == 4 && sizeof(u64) == 8);

constexpr u64 kCacheLine = 64;
constexpr u64 kLine = 2 * kCacheLine;  // neighbours are fetched in pairs

// `widest`: the largest number of chunks that a slot of any rank holds; the tile follows from it. 0: there are no
// slots. `fan`: chunks that one slot of each of a rank's connections holds, together, where that is most. `slots`: the
// least number of slots a connection needs. `scratch`: scratch chunks. `work` and `depth`: operands, each counted for
// every chunk, that the busiest rank handles in a tile, and that the longest chain of steps does, over all ranks.
// `eager`: chunks of the eager area that the rank that sends most needs for a call in one round; 0 if the schedule
// takes more than one (runtime/plan.py). `two_rounds`: 1 if it takes two, with all messages in place (ir/messages.py).
// `one_way`: 1 if no rank both sends and receives, and nothing is combined. `exchanges`: 1 if it is an AllToAll.
// `averages`: 1 if steps are `whole`: then every output of every rank comes from exactly one (ir/order.py).
// clang-format off
#define HOCKET_PLAN_HEADER(X) \
    X(magic) X(rank) X(ranks) X(chunks) X(input_blocks) X(output_blocks) X(scratch) X(slots) X(widest) X(fan) X(work) \
    X(depth) X(eager) X(two_rounds) X(one_way) X(exchanges) X(averages) X(blocks) X(steps) X(operands) X(waits) \
    X(connections) X(multicasts)
// clang-format on

// A thread block: `steps` steps from `first_step`.
#define HOCKET_PLAN_BLOCK(X) X(first_step) X(steps)

// A step on `count` chunks: `sources` operands from `first_operand`, then `destinations` operands. `last`: the set of
// those, bit d for the d-th, that no other operand of this rank shares a chunk with. `whole`: 1 if what it combines
// becomes the sum over all ranks.
#define HOCKET_PLAN_STEP(X) X(count) X(first_operand) X(sources) X(destinations) X(first_wait) X(waits) X(last) X(whole)

// An operand. A span begins at chunk `position` of unit `unit` of its buffer, its chunks `stride` apart. The end of a
// connection has the number of the connection in `end`, and a span where the message lies in the peer's buffer.
#define HOCKET_PLAN_OPERAND(X) X(place) X(end) X(unit) X(position) X(stride)

// A wait: the step of a thread block of this rank that must have finished the same tile. `step` counts in its block.
#define HOCKET_PLAN_WAIT(X) X(block) X(step)

// A connection this rank is one end of (`sends` 1: the sending end), where its messages lie (a Storage), the most
// chunks one of its slots holds, 1 where they are direct, and where in the sender's eager area its message begins.
// Where it is part of a multicast, `multicast` is one more than the number of that, and `reader` the number of the peer
// or, receiving, of this rank among the readers. A sending end is followed by those of `more` further readers, of no
// width: operands name the first. `combined`: 1 if who receives its messages combines each with something else.
#define HOCKET_PLAN_CONNECTION(X) \
    X(peer) X(channel) X(sends) X(storage) X(width) X(place) X(multicast) X(reader) X(more) X(combined)

// A multicast of any rank: messages that `source` sends a tile on `channel`, each to all readers at once.
#define HOCKET_PLAN_MULTICAST(X) X(source) X(channel) X(messages)

#define HOCKET_FIELD(name) u32 name;
struct PlanHeader {
    HOCKET_PLAN_HEADER(HOCKET_FIELD)
};
struct BlockRecord {
    HOCKET_PLAN_BLOCK(HOCKET_FIELD)
};
struct StepRecord {
    HOCKET_PLAN_STEP(HOCKET_FIELD)
};
struct OperandRecord {
    HOCKET_PLAN_OPERAND(HOCKET_FIELD)
};
struct WaitRecord {
    HOCKET_PLAN_WAIT(HOCKET_FIELD)
};
struct ConnectionRecord {
    HOCKET_PLAN_CONNECTION(HOCKET_FIELD)
};
struct MulticastRecord {
    HOCKET_PLAN_MULTICAST(HOCKET_FIELD)
};
#undef HOCKET_FIELD

// Changes whenever the layout or its meaning does.
constexpr u32 kPlanMagic = 0x686b000a;

constexpr u32 kMostReaders = 31;  // of a multicast

// Where an operand lies. The first three are also the numbers of a rank's buffers. From kReceive on they are ends of
// connections: a slot to receive from or to send into; a message in this rank's own buffer, where others read it or
// have written it, so that nothing is moved here; a message in the peer's input or output.
enum Place : u32 {
    kInput = 0,
    kOutput = 1,
    kScratch = 2,
    kReceive = 3,
    kSend = 4,
    kHere = 5,
    kTheirInput = 6,
    kTheirOutput = 7,
};

// Where the messages of a connection lie: in its slots; in the sender's buffers, where the receiver reads them; in the
// receiver's buffers, where the sender writes them. Those in buffers are never too many. Direct ones, between nodes,
// lie in the buffers of both: the network sends from the one and receives in the other, one chunk a tile. Batched are
// direct ones whose sender waits for nobody between two tiles, so that several can be one message.
enum Storage : u32 { kSlots = 0, kPulled = 1, kPushed = 2, kDirect = 3, kBatched = 4 };

struct PlanView {
    const PlanHeader* header;
    const BlockRecord* blocks;
    const StepRecord* steps;
    const OperandRecord* operands;
    const WaitRecord* waits;
    const ConnectionRecord* connections;
    const MulticastRecord* multicasts;
    u32 most_operands = 0;  // of one step
    bool combines = false;  // some step has more than one source
    bool lends = false;     // some message lies in a buffer
    bool has_last = false;  // some destination is in the `last` of a step that stores something
    bool accessed[2] = {};  // by other ranks: this one's input, its output
};

// Whether the messages of a connection lie in this rank's own buffers.
inline bool lies_here(const ConnectionRecord& connection) {
    return connection.storage == (connection.sends ? kPulled : kPushed);
}

// Whether they lie in a buffer of one of its two ranks, which the other accesses.
inline bool is_lent(const ConnectionRecord& connection) {
    return connection.storage == kPulled || connection.storage == kPushed;
}

inline bool is_direct(const ConnectionRecord& connection) { return connection.storage >= kDirect; }

// What is wrong with the connection of a plan, null for nothing.
inline const char* check_connection(const PlanView& view, u32 c) {
    const PlanHeader& h = *view.header;
    const ConnectionRecord& record = view.connections[c];
    if (record.peer >= h.ranks || record.peer == h.rank || record.sends > 1 || record.storage > kBatched ||
        (is_direct(record) ? record.width != 1 || record.multicast != 0 : record.width > h.widest))
        return "a connection makes no sense";
    if (is_lent(record)) {
        if (record.width != 0 || record.multicast != 0 || h.eager != 0) return "a message has two places";
    } else if (h.two_rounds != 0) {
        return "a message of two rounds takes a slot";
    }
    if (record.multicast > h.multicasts || record.reader >= kMostReaders || (record.more != 0 && record.sends == 0) ||
        u64(c) + record.more >= h.connections)
        return "a multicast has no such reader";
    for (u32 further = 1; further <= record.more; ++further) {
        const ConnectionRecord& other = view.connections[c + further];
        if (other.multicast != record.multicast || other.sends == 0 || other.width != 0 || other.more != 0)
            return "a multicast has no such reader";
    }
    if (h.eager != 0 && u64(record.place) + record.width > h.eager) return "a message is outside the eager area";
    return nullptr;
}

// The same of an operand of a step, which is one of its sources or not.
inline const char* check_operand(const PlanView& view, const StepRecord& step, const OperandRecord& operand,
                                 bool is_source) {
    const PlanHeader& h = *view.header;
    if (operand.place > kTheirOutput || operand.place == (is_source ? kSend : kReceive))
        return "an operand has no such place";
    if (operand.place >= kReceive) {
        if (operand.end >= h.connections) return "an operand has no such connection";
        const ConnectionRecord& connection = view.connections[operand.end];
        if (connection.sends == is_source) return "an operand is the wrong end";
        const bool slot = operand.place < kHere, here = operand.place == kHere;
        if (slot == is_lent(connection) || here != lies_here(connection)) return "a message lies elsewhere";
        if (slot && step.count > connection.width) return "a step is wider than its slot";
        if (operand.place > kHere && operand.position >= h.chunks) return "an operand is outside its unit";
        return nullptr;
    }
    const bool scratch = operand.place == kScratch;
    if (scratch ? operand.unit != 0 : operand.position >= h.chunks) return "an operand is outside its unit";
    const u64 chunks[] = {u64(h.input_blocks) * h.chunks, u64(h.output_blocks) * h.chunks, h.scratch};
    const u64 first = scratch ? operand.position : u64(operand.unit) * h.chunks + operand.position;
    if (first + u64(step.count - 1) * operand.stride >= chunks[operand.place])
        return "an operand is outside its buffer";
    return nullptr;
}

// The same of a step, once its connections are right.
inline const char* check_step(const PlanView& view, const StepRecord& step) {
    const PlanHeader& h = *view.header;
    const u64 used = u64(step.sources) + step.destinations;
    if (step.first_operand + used > h.operands || step.sources == 0 || step.destinations == 0)
        return "a step has no operands";
    if (u64(step.first_wait) + step.waits > h.waits) return "a step is outside the waits";
    if (step.count == 0) return "a step works on nothing";
    bool local = false, direct = false;
    for (u32 o = 0; o < used; ++o) {
        const OperandRecord& operand = view.operands[step.first_operand + o];
        if (const char* const wrong = check_operand(view, step, operand, o < step.sources)) return wrong;
        if (operand.place < kReceive) local = true;
        else direct = direct || is_direct(view.connections[operand.end]);
    }
    if (direct && (step.sources != 1 || !local)) return "a direct message lies in no buffer";
    if (h.eager != 0 && !local) return "in one round, a step only forwards";
    for (u32 w = 0; w < step.waits; ++w) {
        const WaitRecord& wait = view.waits[step.first_wait + w];
        if (wait.block >= h.blocks || wait.step >= view.blocks[wait.block].steps)
            return "a wait is for a step that is not there";
    }
    return nullptr;
}

// Lays a view over `words`. Returns null, or what is wrong with them: afterwards no number in the plan leads outside
// its table or this rank's buffers, so the interpreter checks nothing. How long a peer's are, its own plan knows.
inline const char* view_plan(const u32* words, u64 length, PlanView& view) {
    constexpr u64 kWord = sizeof(u32);
    if (length < sizeof(PlanHeader) / kWord) return "it is too short";
    const PlanHeader& h = *reinterpret_cast<const PlanHeader*>(words);
    if (h.magic != kPlanMagic) return "it was made for another version";
    if (h.rank >= h.ranks || h.chunks == 0 || h.slots == 0 || h.fan == 0 || h.work == 0)
        return "its header makes no sense";
    u64 at = sizeof(PlanHeader) / kWord;
    const auto table = [&]<class Record>(const Record*& found, u64 records) {
        found = reinterpret_cast<const Record*>(words + at);
        at += records * (sizeof(Record) / kWord);
    };
    view = {};
    view.header = &h;
    table(view.blocks, h.blocks);
    table(view.steps, h.steps);
    table(view.operands, h.operands);
    table(view.waits, h.waits);
    table(view.connections, h.connections);
    table(view.multicasts, h.multicasts);
    if (at != length) return "its tables do not fill it";
    for (u32 c = 0; c < h.connections; ++c) {
        if (const char* const wrong = check_connection(view, c)) return wrong;
        view.lends = view.lends || is_lent(view.connections[c]);
    }
    for (u32 b = 0; b < h.blocks; ++b) {
        const BlockRecord& block = view.blocks[b];
        if (u64(block.first_step) + block.steps > h.steps) return "a thread block is outside the steps";
    }
    for (u32 s = 0; s < h.steps; ++s) {
        const StepRecord& step = view.steps[s];
        if (const char* const wrong = check_step(view, step)) return wrong;
        const OperandRecord* const operands = view.operands + step.first_operand;
        const u32 used = step.sources + step.destinations;
        bool here = false;  // a message lies in a buffer of this rank, which others access: the step's other operands
                            // are spans of the same message (ir/schedule.py)
        for (u32 o = 0; o < used; ++o) here = here || operands[o].place == kHere;
        for (u32 o = 0; o < used; ++o)
            if (here && operands[o].place < kScratch) view.accessed[operands[o].place] = true;
        view.combines = view.combines || step.sources > 1;
        if (used > view.most_operands) view.most_operands = used;
        view.has_last = view.has_last || (step.last != 0 && operands[0].place != kHere);
    }
    return nullptr;
}

}  // namespace hocket
