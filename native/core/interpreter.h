// The interpreter: runs one rank's plan as a resumable execution.
//
// A thread block is a cursor (tile, step). A step is *ready* when its waits are met, its messages are there and what it
// sends has a place; then it *executes* and *publishes*. `advance` visits each thread block once and never blocks. The
// tile loop is the outer one. There is one instruction, `dsts = reduce(srcs)`.
//
// It is a template over what it runs on, so that no call is virtual. A Device computes, and orders the threads of a
// rank (below). A Port is one end of a connection, and moves messages between ranks (port.h). So the interpreter knows
// neither processes nor networks. In shared memory they are Cpu (runtime/cpu.h) and Fifo (transport/fifo.h).
//
// Not every port can do what follows. Zero-copy: a message lies in a buffer of one of its ranks, which the other reads
// or writes in place. What another reads in a rank's buffers it has read once it releases the message: a rank ends a
// call when it has no `reader`. What another writes there, a step of the rank receives.
//
// A call in one round (eager) has the messages of all ranks in place before it advances: `send` has executed the steps
// that send, and nothing that they store is waited for but by the call header. One in two rounds (zero-copy) needs no
// message: with all ranks in the call, all that others lend it may be read and written, and nobody leaves before those
// are done that use its buffers. In both the ends are always ready and count no messages.
#pragma once

#include "core/plan.h"
#include "core/port.h"

namespace hocket {

// How a call's sizes cut the buffers. All in bytes. A unit of `unit` bytes is cut into chunks of `chunk` bytes, the
// last ones shorter or empty; every chunk into pieces of `tile` bytes. Where units have lengths of their own, `unit` is
// that of the largest on any rank: all are cut by the same chunk.
struct Geometry {
    u64 unit;
    u64 chunk;
    u64 tile;
    u64 tiles;
};

constexpr u64 kAlign = 64;

constexpr double kStepBytes = 16 << 10;  // what a step costs beside moving data, in bytes moved

// Where every chunk is one tile, of any length.
inline Geometry uncut(u64 n, u64 itemsize, u64 chunks) {
    if (itemsize == 0 || kAlign % itemsize != 0) n *= itemsize, itemsize = 1;  // they are only moved: cut as bytes
    const u64 chunk = ((n + chunks - 1) / chunks * itemsize + kAlign - 1) / kAlign * kAlign;
    return {n * itemsize, chunk, chunk == 0 ? kAlign : chunk, 1};
}

// The tile is a power of two of at least 64 bytes, no longer than a chunk needs; `tile` other than 0 sets it otherwise.
// `most` bounds the bytes of a slot.
//
// Where the longest chain of steps exceeds the work of the busiest rank, ranks wait for the first tile to come to them,
// and smaller tiles come sooner. A call of c tiles takes about c * work * (tile + kStepBytes) + (depth - work) * tile,
// all in bytes of operands: the tile grows while that shrinks.
inline Geometry cut(u64 n, u64 itemsize, u64 chunks, u64 widest, u64 most, u64 tile, u64 work = 1, u64 depth = 1) {
    Geometry g = uncut(n, itemsize, chunks);
    g.tile = kAlign;
    while (g.tile < tile && g.tile < g.chunk) g.tile *= 2;
    const double late = depth > work ? double(depth - work) : 0, steps = double(work) * double(g.chunk) * kStepBytes;
    const auto grows = [&] { return 2 * late * double(g.tile) * double(g.tile) < steps; };
    while (tile == 0 && g.tile < g.chunk && g.tile * 2 * widest <= most && grows()) g.tile *= 2;
    g.tiles = g.chunk == 0 ? 1 : (g.chunk + g.tile - 1) / g.tile;
    return g;
}

// A buffer of this rank: units of `unit` bytes with `chunks` chunks each. Scratch is one unit. `bounds`, where units
// have lengths of their own: unit u reaches from byte bounds[u] to bounds[u + 1].
struct Buffer {
    char* base;
    u64 unit;
    u32 chunks;
    const u64* bounds = nullptr;
};

struct Piece {
    u64 offset;  // from the beginning of the buffer
    u64 bytes;
};

// Piece `tile` of the chunk that is `skip` chunks after chunk `position` of unit `unit`. Never outside that chunk.
inline Piece piece_of(const Geometry& g, const Buffer& buffer, u64 unit, u64 position, u64 skip, u64 tile) {
    position += skip;
    if (position >= buffer.chunks) {
        unit += position / buffer.chunks;
        position %= buffer.chunks;
    }
    const u64 base = buffer.bounds == nullptr ? unit * buffer.unit : buffer.bounds[unit];
    const u64 end = buffer.bounds == nullptr ? buffer.unit : buffer.bounds[unit + 1] - base;  // from the base, as below
    const u64 low = position * g.chunk, high = low + g.chunk, skipped = tile * g.tile;
    const u64 begin = low < end ? low : end;
    const u64 length = (high < end ? high : end) - begin;
    if (skipped >= length) return {base + begin + length, 0};
    const u64 rest = length - skipped;
    return {base + begin + skipped, rest < g.tile ? rest : g.tile};
}

// A thread block in execution. `finished` counts its steps over all tiles; it is the semaphore others wait on.
struct Cursor {
    alignas(kLine) u64 finished;
    u64 tile;
    u32 step;
};

// What a thread block executes while others of its rank wait. One that waits for nobody would else send all of a large
// buffer before the next one lends anything, and a rank would load and store by turns.
constexpr u64 kTilesAVisit = 2;

enum class Progress : u32 { kStalled, kMoved, kDone };

// What keeps a thread block from going on.
struct Stall {
    u32 block;
    u32 step;
    bool remote;  // it waits for `peer`, not for a thread block of its own rank
    u32 peer;
};

// The buffers of another rank: its input and its output. `attached`: they are not mapped here, and only the device's
// `reduce_attached` can read and write them.
struct PeerBuffers {
    char* buffers[2];
    bool attached;
};

// What one kernel call is given: where its operands lie, sources first, and whose they are (`owners`, null in a call
// without attached buffers). There is room for twice as many pointers: an AttachingDevice puts its own behind them.
struct Room {
    char** pointers;
    u32* owners;
};
constexpr u32 kMine = ~u32(0);  // an owner: what this rank can load and store itself

// Sets of the destinations of a kernel call that can be stored non-temporally, bit d for the d-th: results that the
// call does not touch again, and messages to ranks that are apart, which they copy or combine.
struct Streamable {
    u32 results, copied, combined;
};

// What computes for a rank, and orders what its threads do:
//   publish_semaphore, observe_semaphore   a step's writes -> the steps of the same rank that wait for it
//   is_apart(peer)                         whether messages to that rank are better stored non-temporally
//   reduce(dsts, m, srcs, k, bytes, streamable, whole)
//                                          the kernel; it allows a destination to be one of the sources; `whole`
//                                          (plan.h)
//   drain()                                orders what `reduce` has stored with what is published after
//   begins(), executed(block, step, tile)  around the work of a step, before it is published: for who watches
//   stalls()                               whoever advances an execution says that it could not go on
// A port may ask for more (transport/fifo.h: FifoDevice).
template <class D>
concept Device = requires(D& device, u64* semaphore, char* const* operands, u32 number, u64 value, Streamable some) {
    device.publish_semaphore(semaphore, value);
    { D::observe_semaphore(semaphore) } -> Is<u64>;
    { device.is_apart(number) } -> Is<bool>;
    device.reduce(operands, number, operands, number, value, some, true);
    device.drain();
    device.begins();
    device.executed(number, number, value);
    device.stalls();
};

// With a zero-copy port a device may be able to do `reduce` where some operands lie in buffers that are `attached`.
// Another one is only given buffers that are not.
template <class D>
concept AttachingDevice = Device<D> && requires(D& device, const Room& room, u32 number, u64 bytes) {
    device.reduce_attached(room, number, number, bytes, true);  // sources, all operands
};

// How the ranks of a call wait for each other: message by message; once, for all to enter; twice, for all to be done
// too.
enum class Rounds : u32 { kMany = 0, kOne = 1, kTwo = 2 };

// An execution on one device also runs on any that derives from it.
template <Device D, Port<D> P> class Execution {
  public:
    // The arrays have one entry for each thread block and each connection; a Room has two for each operand of the step
    // that has most. All belongs to the caller and outlives the execution. Ends are ready to use.
    // `peers`: for each rank in whose buffers messages of this rank lie; null where the plan has none.
    Execution(const PlanView& plan, const Geometry& geometry, const Buffer (&buffers)[3], const PeerBuffers* peers,
              Cursor* cursors, P* ends, Rounds rounds = Rounds::kMany)
        : plan_(plan),
          geometry_(geometry),
          buffers_(buffers),
          peers_(peers),
          cursors_(cursors),
          ends_(ends),
          rounds_(rounds) {
        for (u32 b = 0; b < plan_.header->blocks; ++b) {
            cursors_[b].finished = 0;
            cursors_[b].step = 0;
            cursors_[b].tile = plan_.blocks[b].steps == 0 ? geometry_.tiles : 0;
        }
    }

    // In one round: stores what this rank sends. Messages lie in the order of the steps that send them; equal ones are
    // one, and stored once.
    void send(D& device, const Room& room)
        requires EagerPort<P>
    {
        const char* last = nullptr;
        for (u32 s = 0; s < plan_.header->steps; ++s) {
            const StepRecord& step = plan_.steps[s];
            if (!sends(step)) continue;
            const char* message = ends_[plan_.operands[step.first_operand + step.sources].end].data();
            if (message <= last) continue;
            last = message;
            execute(device, room, step, 0, kMessage);
        }
    }

    // Visits the thread blocks [first, end) once, each for kTilesAVisit or as far as it can go. Different threads may
    // drive disjoint ranges, each with its own room.
    template <class Layer> Progress advance(Layer& device, const Room& room, u32 first, u32 end) {
        bool moved = false, done = true;
        for (u32 b = first; b < end; ++b) {
            Cursor& cursor = cursors_[b];
            const BlockRecord& block = plan_.blocks[b];
            const u64 rest = geometry_.tiles - cursor.tile;
            const u64 stop = cursor.tile + (rest < kTilesAVisit ? rest : kTilesAVisit);
            while (cursor.tile < stop && ready(block, cursor)) {
                const StepRecord& step = plan_.steps[block.first_step + cursor.step];
                device.begins();
                const u64 extent = execute(device, room, step, cursor.tile, rounds_ == Rounds::kOne ? kLocal : kAll);
                device.executed(b, cursor.step, cursor.tile);
                if (++cursor.step == block.steps) {
                    cursor.step = 0;
                    ++cursor.tile;
                }
                publish(device, step, cursor, extent);
                moved = true;
            }
            done = done && cursor.tile == geometry_.tiles;
        }
        return done ? Progress::kDone : moved ? Progress::kMoved : Progress::kStalled;
    }

    // The first rank, or `only` that one, that may still read what this one has lent it; null if there is none. For
    // after the last advance.
    const u32* reader(const u32* only = nullptr)
        requires ZeroCopyPort<P>
    {
        for (u32 c = 0; c < plan_.header->connections; ++c) {
            const bool lends = plan_.connections[c].sends && lies_here(plan_.connections[c]);
            if (lends && (only == nullptr || ends_[c].peer == *only) && !ends_[c].all_released()) return &ends_[c].peer;
        }
        return nullptr;
    }

    // For errors: the step that says, or learns, that messages of connection `end` lie here.
    Stall step_of(u32 end) const {
        Stall found{0, 0, true, ends_[end].peer};
        for (u32 b = 0; b < plan_.header->blocks; ++b)
            for (u32 s = 0; s < plan_.blocks[b].steps; ++s) {
                const StepRecord& step = plan_.steps[plan_.blocks[b].first_step + s];
                for (u32 o = 0; o < step.sources + step.destinations; ++o) {
                    const OperandRecord& operand = plan_.operands[step.first_operand + o];
                    if (operand.place == kHere && operand.end == end) found.block = b, found.step = s;
                }
            }
        return found;
    }

    // For errors: whether thread block `b` is stalled, and on what.
    bool stalled(u32 b, Stall& stall) {
        const Cursor& cursor = cursors_[b];
        if (cursor.tile >= geometry_.tiles) return false;
        const StepRecord& step = plan_.steps[plan_.blocks[b].first_step + cursor.step];
        stall = {b, cursor.step, false, 0};
        if (!waits_met(step, cursor)) return true;
        for (u32 o = 0; o < step.sources + step.destinations; ++o) {
            const OperandRecord& operand = plan_.operands[step.first_operand + o];
            if (end_ready(operand, o < step.sources)) continue;
            P& end = ends_[operand.end];
            stall.remote = true;
            stall.peer = o < step.sources ? end.peer : end.awaited();
            return true;
        }
        return false;
    }

  private:
    // In one round, a step that sends does so first of all.
    bool sends(const StepRecord& step) const {
        return plan_.operands[step.first_operand + step.sources].place == kSend;
    }

    bool ready(const BlockRecord& block, const Cursor& cursor) {
        const StepRecord& step = plan_.steps[block.first_step + cursor.step];
        if (!waits_met(step, cursor)) return false;
        for (u32 o = 0; o < step.sources + step.destinations; ++o)
            if (!end_ready(plan_.operands[step.first_operand + o], o < step.sources)) return false;
        return true;
    }

    bool waits_met(const StepRecord& step, const Cursor& cursor) const {
        for (u32 w = 0; w < step.waits; ++w) {
            const WaitRecord& wait = plan_.waits[step.first_wait + w];
            // Pairs with publish_semaphore in `publish`.
            const u64 finished = D::observe_semaphore(&cursors_[wait.block].finished);
            if (finished < cursor.tile * plan_.blocks[wait.block].steps + wait.step + 1) return false;
        }
        return true;
    }

    bool end_ready(const OperandRecord& operand, bool source) {
        if (operand.place < kReceive) return true;
        P& end = ends_[operand.end];
        return source ? end.try_receive() : end.try_acquire();
    }

    Buffer buffer_of_peer(const OperandRecord& operand) const {
        char* base = peers_[ends_[operand.end].peer].buffers[operand.place - kTheirInput];
        return {base, geometry_.unit, plan_.header->chunks};
    }

    // Where chunk j of an operand lies in this tile. Lowers `bytes` to its length.
    char* piece_in(const Buffer& buffer, const OperandRecord& operand, u32 j, u64 tile, u64& bytes) const {
        const u64 skip = u64(j) * operand.stride;
        const Piece piece = piece_of(geometry_, buffer, operand.unit, operand.position, skip, tile);
        if (piece.bytes < bytes) bytes = piece.bytes;
        return buffer.base + piece.offset;
    }

    // Adds a destination that is a message to a rank that is apart. Of a multicast, the first reader decides for all.
    void add_message(const D& device, const OperandRecord& operand, u32 destination, Streamable& some) const {
        if (operand.place != kSend || destination >= 32 || !device.is_apart(ends_[operand.end].peer)) return;
        (plan_.connections[operand.end].combined ? some.combined : some.copied) |= u32(1) << destination;
    }

    // What of a step to do: in one round its message first, and what it stores for this rank later.
    enum Part { kAll, kMessage, kLocal };

    // For each of the step's chunks one kernel call, on as many bytes as the shortest span has in this tile. None where
    // what is read or all that is written is here already. Returns how far the messages that it stores reach into their
    // places.
    template <class Layer> u64 execute(Layer& device, const Room& room, const StepRecord& step, u64 tile, Part part) {
        char** const pointers = room.pointers;
        const OperandRecord* operands = plan_.operands + step.first_operand;
        const u32 used = part == kMessage ? step.sources + 1 : step.sources + step.destinations;
        if (part == kLocal && step.destinations == 1 && sends(step)) return 0;  // all that it does, it has done
        bool pushed = false, attached = false;  // `pushed`: it may have stored what `publish` alone does not order
        u64 extent = 0;
        for (u32 j = 0; j < step.count; ++j) {
            u64 bytes = geometry_.tile;
            u32 filled = 0, sources = 0;
            Streamable some{part == kAll ? step.last : 0, 0, 0};
            for (u32 o = 0; o < used; ++o) {
                const OperandRecord& operand = operands[o];
                if (operand.place == kHere || (part == kLocal && operand.place == kSend)) continue;
                sources += o < step.sources;
                if (room.owners != nullptr) {
                    const bool theirs = operand.place > kHere && peers_[ends_[operand.end].peer].attached;
                    room.owners[filled] = theirs ? ends_[operand.end].peer : kMine;
                    attached = attached || theirs;
                }
                add_message(device, operand, filled - sources, some);
                if (operand.place == kReceive || operand.place == kSend) {
                    pointers[filled++] = ends_[operand.end].data() + j * geometry_.tile;
                    continue;
                }
                pushed = pushed || (operand.place > kHere && o >= step.sources);
                const bool own = operand.place < kReceive;
                pointers[filled++] = own ? piece_in(buffers_[operand.place], operand, j, tile, bytes)
                                         : piece_in(buffer_of_peer(operand), operand, j, tile, bytes);
                if (bytes == 0) break;
            }
            if (bytes == 0 || sources == 0 || filled == sources) continue;
            extent = j * geometry_.tile + bytes;
            if constexpr (ZeroCopyPort<P> && AttachingDevice<Layer>) {
                if (attached) {
                    device.reduce_attached(room, sources, filled, bytes, step.whole);
                    continue;
                }
            }
            pushed |= (some.copied | some.combined) != 0;
            device.reduce(pointers + sources, filled - sources, pointers, sources, bytes, some, step.whole);
        }
        if (pushed) device.drain();
        return extent;
    }

    // Exactly one commit or release for each connection end, even for zero bytes.
    void publish(D& device, const StepRecord& step, Cursor& cursor, u64 extent) {
        const u32 counted = rounds_ == Rounds::kMany ? step.sources + step.destinations : 0;
        for (u32 o = 0; o < counted; ++o) {
            const OperandRecord& operand = plan_.operands[step.first_operand + o];
            if (operand.place < kReceive) continue;
            P& end = ends_[operand.end];
            if (o < step.sources) end.release(device);
            else end.commit(device, extent);
        }
        // Pairs with observe_semaphore in `waits_met`.
        device.publish_semaphore(&cursor.finished, cursor.finished + 1);
    }

    const PlanView& plan_;
    const Geometry& geometry_;
    const Buffer (&buffers_)[3];
    const PeerBuffers* peers_;
    Cursor* cursors_;
    P* ends_;
    Rounds rounds_;
};

}  // namespace hocket
