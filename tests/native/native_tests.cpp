// The native core with ranks as threads: the same interpreter, call headers and waiting as between processes, where
// sanitizers can see all of it. `native_tests` runs everything; `native_tests litmus` only the one-way tests, of which
// at least one must turn red under ThreadSanitizer for each memory order that is weakened (run_sanitizers.sh);
// `native_tests traffic` given plans, for test_lackey.py to see what memory they touch.

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/communicator.h"

using namespace hocket;

namespace {

#define CHECK(condition)                                                                       \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
            std::exit(1);                                                                      \
        }                                                                                      \
    } while (0)

struct Free {
    void operator()(void* at) const { std::free(at); }
};
using Block = std::unique_ptr<void, Free>;

Block lines(u64 bytes) {
    bytes = (bytes + kPage - 1) / kPage * kPage;
    void* at = std::aligned_alloc(kPage, bytes);
    std::memset(at, 0, bytes);
    return Block(at);
}

// What the threads share. One address for each thing, whoever asks: sanitizers judge addresses.
struct World {
    static constexpr u64 kBytes = 1 << 20;  // of slots, for each connection
    static constexpr u64 kLent = 1 << 16;   // of each rank's arena

    // As if there had been `first` calls, and as many messages on each connection.
    explicit World(u32 ranks, u64 first = 0)
        : control(lines(control_bytes(ranks))),
          lent(lines(ranks * kLent)),
          first(first) {
        for (u32 r = 0; r < ranks; ++r)
            for (const u64 call : {first - 1, first})
                static_cast<RankBlock*>(control.get())[r].headers[call % 2].call = call;
    }

    Counters* counters(u64 source, u64 destination, u64 channel) {
        const std::lock_guard<std::mutex> held(lock);
        Block& block = windows[(channel << 32) + (source << 16) + destination];
        if (block == nullptr) {
            block = lines(kPage + kBytes);
            Counters& counters = *static_cast<Counters*>(block.get());
            counters.filled.count = first;
            for (Counter& freed : counters.freed) freed.count = first;
        }
        return static_cast<Counters*>(block.get());
    }

    char* arena(u32 rank) { return static_cast<char*>(lent.get()) + rank * kLent; }

    Block control;
    Block lent;
    const u64 first;
    std::mutex lock;
    std::map<u64, Block> windows;
};

class ThreadMemory final : public Memory {
  public:
    explicit ThreadMemory(World& world, u32 rank = 0) : world_(world), rank_(rank) {}
    RankBlock* control() override { return static_cast<RankBlock*>(world_.control.get()); }
    Window* window(u32 source, u32 destination, u32 channel) override {
        auto& window = windows_[{source, destination, channel}];
        if (window == nullptr)
            window = std::make_unique<Window>(
                Window{world_.counters(source, destination, channel), World::kBytes, world_.first});
        return window.get();
    }
    int reserve(Window*, u64) override { return EFBIG; }
    u64 place(const char* at) const override {
        const u64 found = u64(at - world_.arena(rank_));
        return found < World::kLent ? found : kNowhere;
    }
    void keep(u64 place) override { kept.push_back(place); }
    char* arena(u32 rank, u64 bytes) override { return bytes <= World::kLent ? world_.arena(rank) : nullptr; }
    int pull(u32, const char* theirs, char* mine, u64 bytes) override {
        if (error == 0) std::memcpy(mine, theirs, bytes);
        return error;
    }
    int push(u32, char* theirs, const char* mine, u64 bytes) override { return pull(0, mine, theirs, bytes); }
    bool reachable(const char*, u64) const override { return true; }
    bool open() const override { return true; }

    std::vector<u64> kept;
    int error = 0;  // of copies from and to others

  private:
    World& world_;
    u32 rank_;
    std::map<std::array<u32, 3>, std::unique_ptr<Window>> windows_;
};

u32 type_named(const std::string& name) {
    u32 type = 0;
    while (name != kTypeNames[type]) ++type;
    return type;
}

struct Operand {
    Place place;
    u32 chunk;     // or, where the message is in a slot or here, the peer
    u32 peer = 0;  // where it is there
};

// Writes a plan by hand.
class Writer {
  public:
    Writer(u32 rank, u32 ranks, u32 chunks, u32 scratch, u32 slots)
        : header_{kPlanMagic, rank, ranks, chunks, 1, 1, scratch, slots, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0} {}

    // Its connections are of one channel.
    void block(u32 channel = 0) {
        blocks_.push_back({u32(steps_.size()), 0});
        channel_ = channel;
    }

    void step(std::vector<Operand> sources, std::vector<Operand> destinations, std::vector<WaitRecord> waits = {},
              u32 last = 0) {
        ++blocks_.back().steps;
        steps_.push_back({1, u32(operands_.size()), u32(sources.size()), u32(destinations.size()), u32(waits_.size()),
                          u32(waits.size()), last});
        for (const Operand& operand : sources) add(operand, false);
        for (const Operand& operand : destinations) add(operand, true);
        waits_.insert(waits_.end(), waits.begin(), waits.end());
    }

    // No message takes a slot.
    void without_slots() { header_.widest = 0; }

    // They wait for each other before and after alone.
    void two_rounds() { header_.two_rounds = 1; }

    // Every rank sends one message, the same to all.
    void one_round() { header_.eager = 1; }

    // Last of all: what `source` has sent to the first reader so far goes to all of them, `messages` times a tile.
    void multicast(u32 source, const std::vector<u32>& readers, u32 messages) {
        multicasts_.push_back({source, channel_, messages});
        for (u32 reader = 0; reader < readers.size(); ++reader)
            if (readers[reader] == header_.rank) {
                connections_.back().multicast = 1;
                connections_.back().reader = reader;
            }
        if (source != header_.rank) return;
        connections_.back().multicast = 1;
        connections_.back().more = u32(readers.size()) - 1;
        for (u32 reader = 1; reader < readers.size(); ++reader)
            connections_.push_back({readers[reader], channel_, 1, kSlots, 0, 0, 1, reader, 0});
    }

    std::vector<u32> words() {
        header_.multicasts = u32(multicasts_.size());
        header_.blocks = u32(blocks_.size());
        header_.steps = u32(steps_.size());
        header_.operands = u32(operands_.size());
        header_.waits = u32(waits_.size());
        header_.connections = u32(connections_.size());
        std::vector<u32> words;
        append(words, &header_, 1);
        append(words, blocks_.data(), blocks_.size());
        append(words, steps_.data(), steps_.size());
        append(words, operands_.data(), operands_.size());
        append(words, waits_.data(), waits_.size());
        append(words, connections_.data(), connections_.size());
        append(words, multicasts_.data(), multicasts_.size());
        return words;
    }

  private:
    // Messages that are pulled or pushed have channels of their own.
    void add(const Operand& operand, u32 sends) {
        if (operand.place < kReceive) {
            operands_.push_back({operand.place, 0, 0, operand.chunk, 1});
            return;
        }
        const bool there = operand.place > kHere, lent = operand.place >= kHere;
        const u32 storage = !lent ? kSlots : (there == (sends != 0)) ? kPushed : kPulled;
        const u32 peer = there ? operand.peer : operand.chunk, channel = channel_ + 100 * storage;
        u32 number = 0;
        while (number < connections_.size() &&
               (connections_[number].peer != peer || connections_[number].channel != channel ||
                connections_[number].sends != sends))
            ++number;
        if (number == connections_.size())
            connections_.push_back({peer, channel, sends, storage, lent ? 0u : 1u, 0, 0, 0, 0});
        operands_.push_back({operand.place, number, 0, there ? operand.chunk : 0, there});
    }

    template <class Record> static void append(std::vector<u32>& words, const Record* records, size_t count) {
        const size_t before = words.size();
        words.resize(before + count * sizeof(Record) / sizeof(u32));
        if (count != 0) std::memcpy(words.data() + before, records, count * sizeof(Record));
    }

    PlanHeader header_;
    u32 channel_ = 0;
    std::vector<BlockRecord> blocks_;
    std::vector<StepRecord> steps_;
    std::vector<OperandRecord> operands_;
    std::vector<WaitRecord> waits_;
    std::vector<ConnectionRecord> connections_;
    std::vector<MulticastRecord> multicasts_;
};

// The ring AllReduce in place on chunks from `from` on, one thread block a rank. Unfused: in the order of the program,
// for any number of slots. Fused: ordered by depth, for two slots or more.
void ring(Writer& plan, u32 rank, u32 ranks, bool fused, u32 from) {
    const u32 next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    const u32 last = 2 * ranks - 2;
    const auto act = [&](u32 chunk, u32 depth) {
        const Operand local{kInput, from + chunk}, in{kReceive, before}, out{kSend, next};
        const bool sums = depth < ranks;
        std::vector<Operand> sources{in};
        if (sums) sources.push_back(local);
        if (depth == 0) plan.step({local}, {out});
        else if (!fused) {
            plan.step(sources, {local});
            if (depth < last) plan.step({local}, {out});
        } else if (depth < ranks - 1) plan.step(sources, {out});
        else if (depth < last) plan.step(sources, {local, out});
        else plan.step(sources, {local});
    };
    // Chunk c starts at rank c + 1 and is at rank c + 1 + d at depth d.
    const auto chunk_at = [&](u32 depth) { return (rank + 2 * ranks - 1 - depth % ranks) % ranks; };
    if (fused) {
        for (u32 depth = 0; depth <= last; ++depth) act(chunk_at(depth), depth);
    } else {
        for (u32 chunk = 0; chunk < ranks; ++chunk)
            for (u32 depth = 0; depth <= last; ++depth)
                if (chunk_at(depth) == chunk) act(chunk, depth);
    }
}

std::vector<u32> ring(u32 rank, u32 ranks, u32 slots, bool fused) {
    Writer plan(rank, ranks, ranks, 0, slots);
    plan.block();
    ring(plan, rank, ranks, fused, 0);
    return plan.words();
}

template <class Body> void on_threads(u32 ranks, Body body) {
    std::vector<std::thread> threads;
    for (u32 r = 0; r < ranks; ++r) threads.emplace_back([r, &body] { body(r); });
    for (std::thread& thread : threads) thread.join();
}

Settings settings(u64 slots) {
    Settings found{{50, 20}, 60.0};
    found.tunables.slots = slots;
    found.tunables.slot_bytes = 64 << 10;
    found.tunables.short_slots_bytes = 0;  // no more slots than that
    return found;
}

// Calls and messages are counted from `first`. With `more` slots where they are short, their number changes between
// calls.
void ring_calls(u32 ranks, bool fused, u64 slots, u64 first, bool more = false) {
    World world(ranks, first);
    on_threads(ranks, [&](u32 rank) {
        ThreadMemory memory(world);
        Settings mine = settings(slots);
        mine.first = first;
        if (more) mine.tunables.short_slots_bytes = Tunables{}.short_slots_bytes;
        Communicator communicator(rank, ranks, memory, {}, mine);
        Plan plan(communicator, ring(rank, ranks, u32(slots), fused), 1, "ring");
        for (int round = 0; round < 60; ++round) {
            const bool large = more && round % 5 == 3;
            const u64 n = large ? 30'000 : u64(round * 37 % 401);
            std::vector<int> data(n);
            for (u64 i = 0; i < n; ++i) data[i] = int(i * 7 + rank * 1000 + u64(round));
            char* at = reinterpret_cast<char*>(data.data());
            const u64 tile = round % 3 && !large ? 64 : 0;  // up to seven tiles
            const Outcome outcome =
                communicator.run(plan, {at, nullptr, nullptr, nullptr, 0, n, tile, type_named("int32"), 0, true});
            CHECK(outcome.fault == Fault::kNone);
            const Candidate candidate = communicator.candidate(plan, n, type_named("int32"), tile);
            CHECK(more ? (candidate.slots == 32) != large : candidate.slots == std::bit_ceil(slots));
            for (u64 i = 0; i < n; ++i)
                CHECK(data[i] == int(ranks * (i * 7 + u64(round)) + 1000 * (ranks * (ranks - 1) / 2)));
        }
        CHECK(communicator.barrier().fault == Fault::kNone);
    });
}

void rings() {
    for (u32 ranks = 2; ranks <= 4; ++ranks)
        for (const bool fused : {false, true})
            for (u64 slots = fused ? 2 : 1; slots <= 3; ++slots)
                for (const bool more : {false, true}) ring_calls(ranks, fused, slots, 0, more);
    std::puts("rings: sums are right");
}

// Rank 0 sends two chunks to readers that are others from call to call, now with the same counters, now past a wrap.
void multicasts() {
    const u32 ranks = 4;
    const std::vector<std::vector<u32>> sets{{1, 2, 3}, {2, 3}, {3, 1}, {2}};
    for (const u64 first : {u64(0), (u64(1) << 32) - 40, ~u64(0) - 40})
        for (const u64 slots : {1, 2, 4}) {
            World world(ranks, first);
            on_threads(ranks, [&](u32 rank) {
                ThreadMemory memory(world);
                Settings mine = settings(slots);
                mine.first = first;
                Communicator communicator(rank, ranks, memory, {}, mine);
                std::vector<std::unique_ptr<Plan>> plans;
                for (const auto& readers : sets) {
                    Writer plan(rank, ranks, 2, 0, 1);
                    plan.block();
                    for (u32 chunk = 0; chunk < 2; ++chunk) {
                        if (rank == 0) plan.step({{kInput, chunk}}, {{kSend, readers[0]}});
                        for (const u32 reader : readers)
                            if (reader == rank) plan.step({{kReceive, 0}}, {{kInput, chunk}});
                    }
                    plan.multicast(0, readers, 2);
                    plans.push_back(std::make_unique<Plan>(communicator, plan.words(), plans.size() + 1, "multicast"));
                }
                for (u64 round = 0; round < 80; ++round) {
                    const u64 set = round * 7 / 3 % sets.size(), n = round * 37 % 401;
                    std::vector<int> data(n, int(round * 10 + rank));
                    char* at = reinterpret_cast<char*>(data.data());
                    const u64 tile = round % 3 ? 64 : 0;
                    const Outcome outcome = communicator.run(
                        *plans[set], {at, nullptr, nullptr, nullptr, 0, n, tile, type_named("int32"), 0, true});
                    CHECK(outcome.fault == Fault::kNone);
                    bool reads = false;
                    for (const u32 reader : sets[set]) reads = reads || reader == rank;
                    for (const int value : data) CHECK(value == int(round * 10 + (reads ? 0 : rank)));
                }
                CHECK(communicator.barrier().fault == Fault::kNone);
            });
        }
    std::puts("multicasts: every reader has every message");
}

// Counters that reach 2^32 and 2^64 in the middle of calls, of a message's tiles, and with slots of any number.
void rings_wrap() {
    for (const u64 bits : {32, 64})
        for (u32 ranks = 2; ranks <= 3; ++ranks)
            for (u64 slots = 2; slots <= 7; ++slots)
                for (const u64 before : {20, 150, 151, 152})
                    ring_calls(ranks, true, slots, (u64(2) << (bits - 1)) - before, before == 150);
    std::puts("rings: sums are right where counters pass 2^32 and 2^64");
}

// Two threads share the thread blocks of each rank: rings on channels of their own, and blocks that copy their results
// once they are there, past the caches. `patience` is little, so that threads fall asleep on slots and on semaphores.
void teams() {
    constexpr u32 kRanks = 2, kRings = 3;
    for (const u32 threads : {1u, 2u, 3u}) {
        World world(kRanks);
        on_threads(kRanks, [&](u32 rank) {
            ThreadMemory memory(world);
            Settings mine = settings(2);
            mine.patience = {5, 2};
            mine.threads = threads;
            mine.team_bytes = mine.cache_bytes = 0;
            Recorder recorder(threads, 64, 1 << 16);
            mine.recorder = &recorder;
            std::atomic<bool> over{false};
            std::thread reader([&] {  // a timeline may be read while another thread is in a call
                while (!over)
                    for (const Tape<StepEvent>& tape : recorder.steps)
                        for (const StepEvent& event : tape.events())
                            CHECK(event.begin <= event.end && event.call <= 100);
            });
            Communicator communicator(rank, kRanks, memory, {}, mine);
            Writer writer(rank, kRanks, kRanks * kRings, 0, 2);
            for (u32 number = 0; number < kRings; ++number) {
                writer.block(number);
                ring(writer, rank, kRanks, true, number * kRanks);
            }
            for (u32 number = kRings; number-- > 0;) {
                writer.block();
                for (u32 chunk = 0; chunk < kRanks; ++chunk)
                    writer.step({{kInput, number * kRanks + chunk}}, {{kOutput, number * kRanks + chunk}},
                                {{number, 2 * kRanks - 2}}, 1);
            }
            Plan plan(communicator, writer.words(), 3, "rings");
            for (int round = 0; round < 100; ++round) {
                const u64 n = u64(round * 61 % 1201);
                std::vector<int> data(n), result(n);
                for (u64 i = 0; i < n; ++i) data[i] = int(i * 5 + rank * 1000 + u64(round));
                const Outcome outcome = communicator.run(
                    plan, {reinterpret_cast<char*>(data.data()), reinterpret_cast<char*>(result.data()), nullptr,
                           nullptr, 0, n, 64, type_named("int32"), 0, true});
                CHECK(outcome.fault == Fault::kNone);
                for (u64 i = 0; i < n; ++i) CHECK(result[i] == int(kRanks * (i * 5 + u64(round)) + 1000));
            }
            over = true;
            reader.join();
            u64 expected = 0, found = 0;
            for (const CallEvent& call : recorder.calls.events()) expected += call.tiles * plan.header().steps;
            for (const Tape<StepEvent>& tape : recorder.steps) {
                found += tape.events().size();
                CHECK(tape.dropped() == 0);
            }
            CHECK(found == expected);  // once the calls are full, steps are not recorded either
            CHECK(recorder.calls.dropped() == 100 - 64);
        });
    }
    std::puts("teams: sums are right, and every step is recorded once");
}

// Everyone sends its buffer to everyone and adds up what it gets: in one round as long as the buffer is small, inlined
// where it is tiny, and over slots otherwise. The result lies in the input.
std::vector<u32> exchanged(u32 rank, u32 ranks) {
    Writer writer(rank, ranks, 1, 0, 1);
    writer.one_round();
    writer.block();
    std::vector<Operand> all;
    for (u32 r = 0; r < ranks; ++r) {
        all.push_back(r == rank ? Operand{kInput, 0} : Operand{kReceive, r});
        if (r != rank) writer.step({{kInput, 0}}, {{kSend, r}});
    }
    writer.step(all, {{kInput, 0}});
    return writer.words();
}

// The first value of the input may come from elsewhere.
void rounds_of(u32 ranks, u64 first, u32 threads) {
    World world(ranks, first);
    on_threads(ranks, [&](u32 rank) {
        ThreadMemory memory(world);
        Settings mine = settings(2);
        mine.first = first;
        mine.threads = threads;
        mine.team_bytes = 0;
        Communicator communicator(rank, ranks, memory, {}, mine);
        Plan plan(communicator, exchanged(rank, ranks), 6, "one round");
        for (int round = 0; round < 120; ++round) {
            const u64 n = round % 7 == 6 ? 5000 : u64(round * 37 % 401) % (round % 2 ? 13 : 4000);
            std::vector<int> data(n), before(n);
            for (u64 i = 0; i < n; ++i) before[i] = int(i * 7 + rank * 1000 + u64(round));
            const bool apart = round % 3 == 0;
            if (!apart) data = before;
            char* at = reinterpret_cast<char*>(data.data());
            char* from = apart ? reinterpret_cast<char*>(before.data()) : nullptr;
            const Outcome outcome =
                communicator.run(plan, {at, nullptr, from, at, apart ? n * 4 : 0, n, 0, type_named("int32"), 0, true});
            CHECK(outcome.fault == Fault::kNone);
            for (u64 i = 0; i < n; ++i)
                CHECK(data[i] == int(ranks * (i * 7 + u64(round)) + 1000 * (ranks * (ranks - 1) / 2)));
        }
    });
}

void rounds() {
    for (u32 ranks = 2; ranks <= 4; ++ranks)
        for (const u64 first : {u64(0), (u64(1) << 32) - 50, ~u64(0) - 50})
            for (const u32 threads : {1u, 2u}) rounds_of(ranks, first, threads);
    std::puts("one round: sums are right");
}

// Rank r adds up slice r of all inputs, in place, and stores it to all results.
std::vector<u32> direct(u32 rank, u32 ranks, bool inplace, bool two_rounds) {
    Writer writer(rank, ranks, ranks, 0, 1);
    writer.without_slots();
    if (two_rounds) writer.two_rounds();
    const Place result = inplace ? kInput : kOutput, their_result = inplace ? kTheirInput : kTheirOutput;
    writer.block();
    std::vector<Operand> all{{kInput, rank}}, results{{result, rank}};
    for (u32 r = 0; r < ranks; ++r) {
        if (r == rank) continue;
        writer.step({{kInput, r}}, {{kHere, r}});
        all.push_back({kTheirInput, rank, r});
        results.push_back({their_result, rank, r});
    }
    writer.step(all, results, {}, (1u << ranks) - 1);
    writer.block();
    for (u32 r = 0; r < ranks; ++r)
        if (r != rank) writer.step({{kHere, r}}, {{result, r}});
    return writer.words();
}

// Buffers lie in the arenas of all ranks, in place, apart, or the one here and the other there; or of some only. Else
// messages take slots, or one round where they are small and nobody lends. `reached`: they lie in no arena.
void lent_sums(u32 ranks, u64 first, u32 threads, bool two_rounds, bool reached) {
    constexpr u64 kMost = World::kLent / 16;  // elements
    World world(ranks, first);
    on_threads(ranks, [&](u32 rank) {
        ThreadMemory memory(world, rank);
        Settings mine = settings(2);
        mine.first = first;
        mine.threads = threads;
        mine.team_bytes = mine.cache_bytes = 0;
        Recorder recorder(threads, 128, 1 << 16);
        if (first == 0) mine.recorder = &recorder;
        if (reached) mine.reaching = Reaching::kAlways;
        Communicator communicator(rank, ranks, memory, {}, mine);
        Plan slots(communicator, ring(rank, ranks, 2, true), 1, "ring");
        Plan small(communicator, exchanged(rank, ranks), 6, "one round");
        Plan inplace(communicator, direct(rank, ranks, true, two_rounds), 2, "in place");
        Plan apart(communicator, direct(rank, ranks, false, two_rounds), 3, "apart");
        std::vector<int> elsewhere(2 * kMost);
        int* const input = reached ? elsewhere.data() : reinterpret_cast<int*>(world.arena(rank));
        int* const output = input + kMost;
        for (int round = 0; round < 120; ++round) {
            const bool exchanges = round % 4 > 1;
            const u64 n = round % 8 == 7 ? u64(round) % 13 : u64(round * 397) % kMost;
            for (u64 i = 0; i < n; ++i) input[i] = int(i * 7 + rank * 1000 + u64(round));
            char* const x = reinterpret_cast<char*>(input);
            char* const out = reinterpret_cast<char*>(output);
            const bool in = round % 5 == 0 || (round % 5 == 1 && rank != 0);
            const bool none = (round % 5 == 2 && rank == 1) || round % 15 == 14;
            const bool fetched = round % 7 == 3, at_odds = round % 7 == 4;
            const Variant offered[] = {in ? kInPlace : kApart, in ? kFetchedInPlace : kFetchedApart};
            Offer offer{{}, x, in ? nullptr : out};
            offer.plans[offered[fetched || (at_odds && rank == 1)]] = in ? &inplace : &apart;
            if (none) offer = {};
            // These know no other way than in place.
            std::vector<int> own(input, input + n);
            char* const at = in ? x : reinterpret_cast<char*>(own.data());
            const Outcome outcome =
                communicator.run(exchanges ? small : slots, {at, nullptr, nullptr, nullptr, 0, n, round % 2 ? 64u : 0u,
                                                             type_named("int32"), 0, true, nullptr, &offer});
            CHECK(outcome.fault == Fault::kNone);
            const bool lends = round % 15 != 14 && round % 5 != 1 && round % 5 != 2 && !at_odds &&
                               !(exchanges && n * sizeof(int) <= kInlined);
            CHECK(outcome.variant == (lends ? offered[fetched] : kBuffered));
            const u64 bytes = n * sizeof(int), most = round % 2 ? 64 : kEager;
            const bool one = exchanges && (bytes <= kInlined || (round % 15 == 14 && bytes <= most));
            const Rounds rounds = one                                          ? Rounds::kOne
                                  : outcome.variant != kBuffered && two_rounds ? Rounds::kTwo
                                                                               : Rounds::kMany;
            CHECK(first != 0 || recorder.calls.events().back().rounds == u32(rounds));
            const int* result = lends && !in ? output : reinterpret_cast<int*>(at);
            for (u64 i = 0; i < n; ++i)
                CHECK(result[i] == int(ranks * (i * 7 + u64(round)) + 1000 * (ranks * (ranks - 1) / 2)));
        }
        CHECK(memory.kept.empty());
    });
}

void lent() {
    for (u32 ranks = 2; ranks <= 4; ++ranks)
        for (const u64 first : {u64(0), (u64(1) << 32) - 50, ~u64(0) - 50})
            for (const u32 threads : {1u, 2u})
                for (const auto& [two_rounds, reached] : {std::pair(false, false), {true, false}, {true, true}})
                    lent_sums(ranks, first, threads, two_rounds, reached);
    std::puts("lent: sums are right");
}

// In how many of `calls` calls the second way is asked for, if each takes `ticks(second, alike)`, after so many alike,
// and the second way can be gone or not. What a call took is told in the next one, when it has been decided how that
// goes.
template <class Ticks> u32 seconds(Contest& contest, u32 calls, Ticks ticks, bool possible = true) {
    u32 found = 0, alike = 0;
    bool before = false;
    for (u32 call = 0; call < calls; ++call) {
        const bool asked = contest.second(), second = asked && possible;
        if (call > 0) contest.took(before, ticks(before, alike));
        contest.next();
        alike = call > 0 && second == before ? alike + 1 : 0;
        before = second;
        found += asked;
    }
    return found;
}

// Takes the faster way nearly always, whichever that is, and finds out when it is so no more.
void contests() {
    Contest contest(6);
    for (const bool second_is_faster : {true, false, true}) {
        const auto ticks = [&](bool second, u32) { return second == second_is_faster ? 1000u : 1500u; };
        seconds(contest, 3000, ticks);
        const u32 found = seconds(contest, 3000, ticks);
        const u32 wrong = second_is_faster ? 3000 - found : found;
        CHECK(wrong > 20 && wrong < 90);  // two trials, or three, of a 64th of so many calls
    }
    Contest hopeless(12);
    const u32 tried = seconds(hopeless, 6000, [](bool second, u32) { return second ? 2000u : 1000u; });
    CHECK(tried > 20 && tried < 60);  // some ten trials
    Contest slow(2, true);            // to become fast: a trial goes on as long as it does
    const auto ticks = [](bool second, u32 alike) {
        return second ? 1700 - 50 * std::min(alike, 18u) : 1000 + 500 * (alike == 0);
    };
    seconds(slow, 100, ticks);
    CHECK(seconds(slow, 1000, ticks) > 900);
    Contest vain(2, true);  // it becomes faster, but not fast enough
    CHECK(seconds(vain, 1000, [&](bool second, u32 alike) { return ticks(second, alike) + 300 * second; }) < 200);
    for (const bool fills : {false, true}) {
        Contest never(2, fills);
        CHECK(seconds(never, 2000, ticks, false) < 60);
        Contest no_more(2, fills);
        seconds(no_more, 1000, [](bool second, u32) { return second ? 2000u : 1000u; });
        CHECK(seconds(no_more, 2000, [](bool, u32) { return 1000u; }, false) < 60);
    }
    std::puts("contest: the faster way");
}

std::atomic<u32> looked;

// Ranks that find out by trying whether to reach each other's buffers all go one way, and both are gone, though what
// they see of their caches differs. They look in few calls.
void contested() {
    constexpr u32 kRanks = 3, kCalls = 200, kElements = 600;
    World world(kRanks);
    std::vector<Variant> ways[kRanks];
    on_threads(kRanks, [&](u32 rank) {
        ThreadMemory memory(world, rank);
        Settings mine = settings(2);
        mine.reaching = Reaching::kWhereFaster;
        mine.is_far = [](const char*, u64) { return ++looked % 4 != 0; };
        Communicator communicator(rank, kRanks, memory, {}, mine);
        Plan slots(communicator, ring(rank, kRanks, 2, true), 1, "ring");
        Plan inplace(communicator, direct(rank, kRanks, true, true), 2, "in place");
        std::vector<int> data(kElements);
        char* const at = reinterpret_cast<char*>(data.data());
        for (u32 call = 0; call < kCalls; ++call) {
            for (u32 i = 0; i < kElements; ++i) data[i] = int(i + call + rank);
            const Offer offer{{nullptr, &inplace, nullptr}, at, nullptr};
            const Outcome outcome = communicator.run(
                slots, {at, nullptr, nullptr, nullptr, 0, kElements, 0, type_named("int32"), 0, true, nullptr, &offer});
            CHECK(outcome.fault == Fault::kNone);
            for (u32 i = 0; i < kElements; ++i) CHECK(data[i] == int(kRanks * (i + call) + kRanks * (kRanks - 1) / 2));
            ways[rank].push_back(outcome.variant);
            if (call % 3 == 0) CHECK(communicator.barrier().fault == Fault::kNone);
        }
    });
    for (const auto& found : ways) CHECK(found == ways[0]);
    CHECK(looked > 0 && looked < kRanks * kCalls);
    for (const Variant way : {kBuffered, kInPlace})
        CHECK(std::find(ways[0].begin(), ways[0].end(), way) != ways[0].end());
    std::puts("contest: all ranks go one way");
}

std::atomic<bool> looks;  // a rank that waits looks for faults

// A rank of several threads whose peer fails in the call: all of its threads stop, and the cause is what is told.
void team_fails() {
    World world(2);
    on_threads(2, [&](u32 rank) {
        ThreadMemory memory(world);
        Settings mine = settings(2);
        mine.threads = 2;
        mine.team_bytes = 0;
        mine.interrupted = [] { return !(looks = true); };
        Communicator communicator(rank, 2, memory, {}, mine);
        Writer writer(rank, 2, 4, 0, 2);
        for (u32 number = 0; number < 2 && rank == 1; ++number) {
            writer.block(number);
            ring(writer, rank, 2, true, number * 2);
        }
        Plan plan(communicator, writer.words(), 4, "rings");
        std::vector<int> data(1000);
        const Outcome outcome = communicator.run(plan, {reinterpret_cast<char*>(data.data()), nullptr, nullptr, nullptr,
                                                        0, 1000, 64, type_named("int32"), 0, true});
        if (rank == 0) {  // which sends nothing
            looks = false;
            while (!looks) ::sched_yield();
            return communicator.fail(0, "raised something");
        }
        CHECK(outcome.fault == Fault::kPeer && outcome.rank == 0 && outcome.text == "raised something");
    });
    std::puts("team: fails as one");
}

// Calls that are made in the background, in order, while the ranks' own threads look on.
void background() {
    World world(3);
    on_threads(3, [&](u32 rank) {
        ThreadMemory memory(world);
        Communicator communicator(rank, 3, memory, {}, settings(2));
        Plan plan(communicator, ring(rank, 3, 2, true), 1, "ring");
        constexpr u64 kJobs = 20, kElements = 300;
        std::vector<std::vector<int>> data(kJobs, std::vector<int>(kElements, int(rank)));
        std::vector<Outcome> outcomes(kJobs);
        std::vector<Queue::Job> jobs(kJobs);
        Queue queue;
        for (u64 j = 0; j < kJobs; ++j) {
            jobs[j].body = [&, j] {
                outcomes[j] = communicator.run(plan, {reinterpret_cast<char*>(data[j].data()), nullptr, nullptr,
                                                      nullptr, 0, kElements, 64, type_named("int32"), 0, true});
            };
            queue.submit(jobs[j]);
        }
        while (!queue.done(jobs[0])) ::sched_yield();
        while (!queue.wait(jobs[kJobs - 1], 1)) continue;
        for (u64 j = 0; j < kJobs; ++j) {
            CHECK(outcomes[j].fault == Fault::kNone);
            for (const int value : data[j]) CHECK(value == 3);
        }
    });
    std::puts("background: calls in order");
}

// One way only, so that nothing but the slot's own counters orders what the two ranks do.
void litmus_slots() {
    for (u64 slots = 1; slots <= 2; ++slots) {
        World world(2);
        on_threads(2, [&](u32 rank) {
            ThreadMemory memory(world);
            Communicator communicator(rank, 2, memory, {}, settings(slots));
            Writer writer(rank, 2, 1, 0, 1);
            writer.block();
            if (rank == 0) writer.step({{kInput, 0}}, {{kSend, 1}});
            else writer.step({{kReceive, 0}}, {{kOutput, 0}});
            Plan plan(communicator, writer.words(), 2, "one way");
            std::vector<long long> data(512);
            for (u64 i = 0; rank == 0 && i < data.size(); ++i) data[i] = (long long)(i * i);
            char* at = reinterpret_cast<char*>(data.data());
            for (int round = 0; round < 50; ++round)
                CHECK(
                    communicator.run(plan, {at, at, nullptr, nullptr, 0, data.size(), 64, type_named("int64"), 0, true})
                        .fault == Fault::kNone);
            for (u64 i = 0; i < data.size(); ++i) CHECK(data[i] == (long long)(i * i));
        });
    }
    std::puts("slots: one way");
}

// Messages in the buffers of one rank, which another reads or writes. Rank 0 offers what it has just copied, and
// changes it as soon as the call is over; rank 1 stores what it has to rank 0, which looks at it as soon as the call is
// over. In two rounds rank 0 offers what it began with. Calls are counted from close to where that wraps.
void litmus_lent(bool two_rounds, bool pushed) {
    constexpr u64 kElements = 512, kFirst = ~u64(0) - 20;
    World world(2, kFirst);
    on_threads(2, [&](u32 rank) {
        ThreadMemory memory(world, rank);
        Settings mine = settings(1);
        mine.first = kFirst;
        Communicator communicator(rank, 2, memory, {}, mine);
        Writer writer(rank, 2, 1, 0, 1);
        writer.without_slots();
        if (two_rounds) writer.two_rounds();
        writer.block();
        const Place offered = two_rounds ? kInput : kOutput, theirs = two_rounds ? kTheirInput : kTheirOutput;
        if (pushed && rank == 0) writer.step({{kHere, 1}}, {{kOutput, 0}});
        if (pushed && rank == 1) writer.step({{kInput, 0}}, {{kTheirOutput, 0, 0}});
        if (!pushed && !two_rounds && rank == 0) writer.step({{kInput, 0}}, {{kOutput, 0}});
        if (!pushed && rank == 0) writer.step({{offered, 0}}, {{kHere, 1}});
        if (!pushed && rank == 1) writer.step({{theirs, 0, 0}}, {{kOutput, 0}});
        Plan plan(communicator, writer.words(), 8, "lent");
        long long* input = reinterpret_cast<long long*>(world.arena(rank));
        long long* output = input + kElements;
        for (int round = 0; round < 50; ++round) {
            for (u64 i = 0; i < kElements; ++i) input[i] = (long long)(i * i) + round;
            const Offer offer{
                {nullptr, nullptr, &plan}, reinterpret_cast<char*>(input), reinterpret_cast<char*>(output)};
            const Outcome outcome = communicator.run(plan, {offer.input, offer.output, nullptr, nullptr, 0, kElements,
                                                            64, type_named("int64"), 0, true, nullptr, &offer});
            CHECK(outcome.fault == Fault::kNone && outcome.variant == kApart);
            for (u64 i = 0; i < kElements && rank == u32(!pushed); ++i) CHECK(output[i] == (long long)(i * i) + round);
            for (u64 i = 0; i < kElements; ++i) output[i] = -1;
        }
    });
}

void litmus_lent() {
    for (const bool two_rounds : {false, true})
        for (const bool pushed : {false, true}) litmus_lent(two_rounds, pushed);
    std::puts("lent: one way");
}

// The same in one round, where only the headers order it.
void litmus_round() {
    for (const u64 n : {u64(6), u64(512)}) {
        World world(2);
        on_threads(2, [&](u32 rank) {
            ThreadMemory memory(world);
            Communicator communicator(rank, 2, memory, {}, settings(1));
            Writer writer(rank, 2, 1, 0, 1);
            writer.one_round();
            writer.block();
            if (rank == 0) writer.step({{kInput, 0}}, {{kSend, 1}});
            else writer.step({{kReceive, 0}}, {{kOutput, 0}});
            Plan plan(communicator, writer.words(), 7, "one way, one round");
            std::vector<long long> data(n);
            char* at = reinterpret_cast<char*>(data.data());
            for (int round = 0; round < 50; ++round) {
                for (u64 i = 0; rank == 0 && i < n; ++i) data[i] = (long long)(i * i) + round;
                CHECK(communicator.run(plan, {at, at, nullptr, nullptr, 0, n, 0, type_named("int64"), 0, true}).fault ==
                      Fault::kNone);
                for (u64 i = 0; i < n; ++i) CHECK(data[i] == (long long)(i * i) + round);
            }
        });
    }
    std::puts("one round: one way");
}

// Two thread blocks of one rank: the second waits for the first.
std::vector<u32> one_after_the_other() {
    Writer writer(0, 1, 1, 1, 1);
    writer.block();
    writer.step({{kInput, 0}}, {{kScratch, 0}});
    writer.block();
    writer.step({{kScratch, 0}}, {{kOutput, 0}}, {{0, 0}});
    return writer.words();
}

// Two threads drive them.
void litmus_semaphore() {
    const std::vector<u32> words = one_after_the_other();
    PlanView view{};
    CHECK(view_plan(words.data(), words.size(), view) == nullptr);
    RankBlock nobody{};
    for (int round = 0; round < 50; ++round) {
        std::vector<int> input(512, round), output(512), scratch(512);
        const Geometry geometry = cut(512, 4, 1, 1, 0, 64);
        const auto buffer = [&](std::vector<int>& data) {
            return Buffer{reinterpret_cast<char*>(data.data()), geometry.unit, 1};
        };
        const Buffer buffers[3] = {buffer(input), buffer(output), buffer(scratch)};
        Cursor cursors[2];
        Execution<Cpu> execution(view, geometry, buffers, nullptr, cursors, nullptr);
        on_threads(2, [&](u32 block) {
            Cpu cpu{kernels().reduce[type_named("int32")][0], &nobody, 0, true, Past::kNothing, Manner::kBlocks};
            char* pointers[2];
            while (execution.advance(cpu, {pointers, nullptr}, block, block + 1) != Progress::kDone) ::sched_yield();
        });
        for (const int value : output) CHECK(value == round);
    }
    std::puts("semaphore: one way");
}

// A thread block follows another past 2^32 steps. Tiles so far into a chunk have no bytes.
void semaphores_count_on() {
    const std::vector<u32> words = one_after_the_other();
    PlanView view{};
    CHECK(view_plan(words.data(), words.size(), view) == nullptr);
    RankBlock nobody{};
    long long data[3] = {};
    Geometry geometry = cut(1, 8, 1, 1, 0, 64);
    geometry.tiles = u64(1) << 33;
    const Buffer buffers[3] = {{reinterpret_cast<char*>(&data[0]), geometry.unit, 1},
                               {reinterpret_cast<char*>(&data[1]), geometry.unit, 1},
                               {reinterpret_cast<char*>(&data[2]), geometry.unit, 1}};
    Cursor cursors[2];
    Execution<Cpu> execution(view, geometry, buffers, nullptr, cursors, nullptr);
    Cpu cpu{kernels().move, &nobody, 0, false, Past::kNothing, Manner::kBlocks};
    char* pointers[2];
    const u64 first = (u64(1) << 32) - 3;
    cursors[1].tile = cursors[1].finished = first;
    for (u64 finished = first; finished < first + 6; ++finished) {
        cursors[0].finished = finished;
        const Progress progress = execution.advance(cpu, {pointers, nullptr}, 1, 2);
        CHECK(progress == (finished == first ? Progress::kStalled : Progress::kMoved));
        CHECK(cursors[1].tile == finished && cursors[1].finished == finished);
    }
    std::puts("semaphores: past 2^32");
}

void litmus_header() {
    World world(3);
    on_threads(3, [&](u32 rank) {
        ThreadMemory memory(world);
        Communicator communicator(rank, 3, memory, {}, settings(1));
        for (int round = 0; round < 200; ++round) {
            // Every third call one rank refuses: all must know, and why, and go on.
            if (round % 3 == 2 && u32(round) % 9 / 3 == rank) {
                CHECK(communicator.refuse("because").fault == Fault::kRefused);
                continue;
            }
            const Outcome outcome = communicator.barrier();
            CHECK(outcome.fault == (round % 3 == 2 ? Fault::kRefused : Fault::kNone));
            if (round % 3 == 2) CHECK(outcome.rank == u32(round) % 9 / 3 && outcome.text == "because");
        }
    });
    std::puts("header: everyone agrees");
}

void litmus_state() {
    World world(2);
    on_threads(2, [&](u32 rank) {
        ThreadMemory memory(world);
        Communicator communicator(rank, 2, memory, {}, settings(1));
        if (rank == 0) {
            communicator.fail(0, "raised something");
        } else {
            const Outcome outcome = communicator.barrier();
            CHECK(outcome.fault == Fault::kPeer && outcome.rank == 0 && outcome.text == "raised something");
            CHECK(communicator.barrier().fault == Fault::kDead);
        }
    });
    std::puts("state: a failed rank is noticed, and why");
}

// Rank 0 leaves after a barrier, rank 1 misses it in the next one and fails; rank 2, still in the first, must not: all
// it needs is there. Its hook holds it, in the look for faults of that first barrier, until rank 1 has failed.
std::atomic<bool> has_failed;

bool hold() {
    looks = true;
    while (!has_failed) ::sched_yield();
    return false;
}

void failed_later(u64 first) {
    looks = has_failed = false;
    World world(3, first);
    on_threads(3, [&](u32 rank) {
        ThreadMemory memory(world);
        Settings mine = settings(1);
        mine.first = first;
        if (rank == 2) mine.interrupted = hold;
        Communicator communicator(rank, 3, memory, {}, mine);
        while (rank == 0 && !looks) ::sched_yield();
        CHECK(communicator.barrier().fault == Fault::kNone);
        if (rank == 0) return communicator.leave();
        const Outcome outcome = communicator.barrier();
        CHECK(outcome.fault == Fault::kPeer && outcome.rank == 0 && outcome.text == "closed its communicator");
        if (rank == 1) has_failed = true;
    });
    std::puts("a failure in a later call: does not end this one");
}

// The other way round: rank 1 fails in call 2^64 - 1, for a message that rank 0 does not send; the others, who need
// nothing in that call, must know in the next, which is 0.
void failed_before() {
    const u64 first = ~u64(0) - 1;
    World world(3, first);
    on_threads(3, [&](u32 rank) {
        ThreadMemory memory(world);
        Settings mine = settings(1);
        mine.first = first;
        if (rank == 1) mine.timeout = 1;
        Communicator communicator(rank, 3, memory, {}, mine);
        Writer writer(rank, 3, 1, 0, 1);
        writer.block();
        if (rank == 1) writer.step({{kReceive, 0}}, {{kOutput, 0}});
        Plan plan(communicator, writer.words(), 5, "nobody sends");
        long long data = 0;
        char* at = reinterpret_cast<char*>(&data);
        const Outcome outcome =
            communicator.run(plan, {at, at, nullptr, nullptr, 0, 1, 0, type_named("int64"), 0, true});
        CHECK(outcome.fault == (rank == 1 ? Fault::kTimeout : Fault::kNone));
        if (rank == 1) return;
        const Outcome next = communicator.barrier();
        CHECK(next.fault == Fault::kPeer && next.text == "was waited for in vain");
    });
    std::puts("a failure in an earlier call: ends this one, where the number of calls wraps too");
}

// What a rank lends is not used again where a call failed: another may be late to read it. In two rounds, too, where
// the other is interrupted before it is done: it waits for itself.
void lent_in_vain(bool two_rounds) {
    World world(2);
    looks = false;
    on_threads(2, [&](u32 rank) {
        ThreadMemory memory(world, rank);
        Settings mine = settings(1);
        mine.interrupted = [] { return !(looks = true); };
        if (two_rounds && rank == 1) mine.interrupted = [] { return looks.load(); };
        Communicator communicator(rank, 2, memory, {}, mine);
        Writer writer(rank, 2, 1, 0, 1);
        writer.without_slots();
        if (two_rounds) writer.two_rounds();
        writer.block();
        if (rank == 0) writer.step({{kInput, 0}}, {{kHere, 1}});
        else if (two_rounds) writer.step({{kTheirInput, 0, 0}}, {{kInput, 0}}, {{0, 0}});
        Plan plan(communicator, writer.words(), 9, "nobody reads");
        const Offer offer{{nullptr, &plan}, world.arena(rank) + 64, nullptr};
        const Outcome outcome = communicator.run(
            plan, {offer.input, nullptr, nullptr, nullptr, 0, 1, 0, type_named("int64"), 0, true, nullptr, &offer});
        if (rank == 1 && two_rounds) {
            CHECK(outcome.fault == Fault::kInterrupted);
            return;
        }
        if (rank == 1) {
            CHECK(outcome.fault == Fault::kNone && memory.kept.empty());
            while (!looks) ::sched_yield();
            return communicator.fail(1, "raised something");
        }
        CHECK(outcome.fault == Fault::kPeer && outcome.rank == 1);
        CHECK(outcome.text == (two_rounds ? "was interrupted" : "raised something"));
        CHECK(memory.kept == std::vector<u64>{64});
    });
    std::puts("lent: kept where a call failed");
}

// Memory that cannot be reached after all is a fault of whose it is, or of who may not reach it, and what a rank has
// told the others of is exposed.
void reached_in_vain() {
    constexpr auto kRefused =
        "may not access the memory of rank 0 any more: Operation not permitted (HOCKET_REACH=never does without)";
    for (const bool pushed : {false, true})
        for (const auto& [error, whose, text] : {std::tuple(ESRCH, 0u, "has ended"),
                                                 {EFAULT, 0u, "has an array that cannot be reached: Bad address"},
                                                 {EPERM, 1u, kRefused}}) {
            World world(2);
            on_threads(2, [&](u32 rank) {
                ThreadMemory memory(world, rank);
                Settings mine = settings(1);
                mine.reaching = Reaching::kAlways;
                if (rank == 1) memory.error = error;
                Communicator communicator(rank, 2, memory, {}, mine);
                Writer writer(rank, 2, 2, 0, 1);
                writer.without_slots();
                writer.two_rounds();
                writer.block();
                const Operand here{kHere, 1 - rank}, there{kTheirInput, 0, 0}, own{kInput, 1};
                if (rank == 1) writer.step({pushed ? own : there}, {pushed ? there : own});
                else if (pushed) writer.step({here}, {{kInput, 0}});
                else writer.step({{kInput, 0}}, {here});
                Plan plan(communicator, writer.words(), 9, "reached in vain");
                std::vector<long long> data(32, rank);
                char* const at = reinterpret_cast<char*>(data.data());
                const Offer offer{{nullptr, &plan}, at, nullptr};
                const Outcome outcome = communicator.run(
                    plan, {at, nullptr, nullptr, nullptr, 0, 32, 0, type_named("int64"), 0, true, nullptr, &offer});
                CHECK(outcome.fault == Fault::kPeer && outcome.rank == whose && outcome.text == text &&
                      outcome.exposed);
                CHECK(memory.kept.empty());
                for (const long long value : data) CHECK(value == rank);
            });
        }
    std::puts("reached in vain: told to all");
}

u32 spied;
Manner spied_manner;
void spy(char* const*, u32, char* const*, u32, u64, u32 last, Manner manner) {
    spied = last;
    spied_manner = manner;
}

// Which stores go past the caches, of those that may, and in which manner a kernel goes about them.
void past_the_caches() {
    RankBlock nobody{};
    for (const Manner manner : {Manner::kBlocks, Manner::kLines}) {
        Cpu{spy, &nobody, 0, false, Past::kNothing, manner}.reduce(nullptr, 1, nullptr, 2, 64, 0);
        CHECK(spied_manner == manner);
    }
    const auto asked = [&](Past past, u32 m, u32 k, u32 last) {
        Cpu cpu{spy, &nobody, 0, false, past, Manner::kBlocks};
        cpu.reduce(nullptr, m, nullptr, k, 64, last);
        return spied;
    };
    for (const u32 k : {1u, 2u}) {
        CHECK(asked(Past::kNothing, 2, k, 3) == 0);
        CHECK(asked(Past::kAll, 2, k, 1) == 1);
        CHECK(asked(Past::kSums, 1, k, 1) == k - 1);
        CHECK(asked(Past::kSums, 2, k, 3) == 3 * (k - 1));
        CHECK(asked(Past::kSums, 2, k, 2) == 0);
    }
    CHECK(asked(Past::kSums, 32, 2, ~0u) == ~0u);
    std::puts("past the caches: what may go there");
}

std::vector<const char*> looked_at;
bool near_from_now_on;
bool asked(const char* at, u64) {
    looked_at.push_back(at);
    return !near_from_now_on;
}

// A rank looks at its own buffers only, at none that is short or fresh, nor at a result that the call before has stored
// past the caches, if that is all there is, and at no more once one is near. What is far is stored past the caches.
void looks_at_buffers() {
    World world(1);
    ThreadMemory memory(world);
    Settings mine = settings(1);
    Recorder recorder(1, 64, 64);
    mine.recorder = &recorder;
    mine.is_far = asked;
    mine.tunables.fifo_sums_past_bytes = 256 << 10;
    mine.tunables.fifo_copies_past_bytes = 512 << 10;
    mine.tunables.fifo_by_lines = 0;
    Communicator communicator(0, 1, memory, {}, mine);
    const auto plan_of = [&](std::vector<Operand> sources, u32 last, Place result = kOutput) {
        Writer writer(0, 1, 1, 0, 1);
        writer.block();
        writer.step(sources, {{result, 0}}, {}, last);
        return std::make_unique<Plan>(communicator, writer.words(), 1, "alone");
    };
    const auto sums = plan_of({{kInput, 0}, {kInput, 0}}, 1), copies = plan_of({{kInput, 0}}, 1);
    const auto reads_again = plan_of({{kInput, 0}}, 0), in_place = plan_of({{kInput, 0}, {kInput, 0}}, 1, kInput);
    constexpr u64 kLong = (256 << 10) / sizeof(float);
    std::vector<float> input(2 * kLong, 1), output(2 * kLong);
    Past past = Past::kNothing;
    const auto looks_into = [&](Plan& plan, u64 n, bool near, bool fresh, float* to) {
        looked_at.clear();
        near_from_now_on = near;
        char* const x = reinterpret_cast<char*>(input.data());
        char* const out = reinterpret_cast<char*>(to);
        Call call{x, out, nullptr, nullptr, 0, n, 0, type_named("float32"), 0, true};
        call.fresh = fresh;
        CHECK(communicator.run(plan, call).fault == Fault::kNone);
        for (const char* at : looked_at)
            CHECK((at >= x && at < x + n * sizeof(float)) || (out && at >= out && at < out + n * sizeof(float)));
        past = Past(recorder.calls.events().back().past);
        return looked_at.size();
    };
    const auto looks = [&](Plan& plan, u64 n, bool near, bool fresh) {
        return looks_into(plan, n, near, fresh, output.data());
    };
    CHECK(looks(*sums, kLong, false, false) == 4 && past == Past::kSums);
    for (u64 i = 0; i < kLong; ++i) CHECK(output[i] == 2);
    CHECK(looks(*sums, kLong, false, false) == 4 && past == Past::kSums);
    CHECK(looks(*sums, kLong, true, false) == 1 && past == Past::kNothing);
    for (int round = 0; round < 2; ++round) {
        CHECK(looks_into(*in_place, kLong, false, false, nullptr) == 2 && past == Past::kSums);
        CHECK(looks_into(*in_place, kLong, false, false, nullptr) == 0 && past == Past::kNothing);
    }
    CHECK(looks(*sums, kLong, false, true) == 0 && past == Past::kNothing);
    CHECK(looks(*sums, kLong - 1, false, false) == 0 && past == Past::kNothing);
    CHECK(looks(*sums, 0, false, false) == 0 && past == Past::kNothing);
    CHECK(looks(*copies, 2 * kLong, false, false) == 4 && past == Past::kAll);
    CHECK(looks(*copies, 2 * kLong - 1, false, false) == 0 && past == Past::kNothing);
    CHECK(looks(*reads_again, 2 * kLong, false, false) == 0 && past == Past::kNothing);
    std::puts("a look at the buffers: inside of them, and not for nothing");
}

// Words that are no plan are refused before anything follows them.
void refused(const std::vector<u32>& good) {
    PlanView view{};
    CHECK(view_plan(good.data(), good.size(), view) == nullptr);
    CHECK(view_plan(good.data(), good.size() - 1, view) != nullptr);
    int count = 0;
    for (size_t i = 0; i < good.size(); ++i) {
        std::vector<u32> bad = good;
        bad[i] = 0x7fffffff;
        count += view_plan(bad.data(), bad.size(), view) != nullptr;
    }
    CHECK(count > int(good.size()) / 2);  // the others are numbers that may be large: channels, strides of one chunk
}

void bad_plans() {
    refused(ring(0, 3, 2, true));
    for (const bool two_rounds : {false, true}) refused(direct(0, 3, true, two_rounds));
    std::puts("bad plans: refused");
}

std::vector<u32> read_words(const char* file) {
    std::vector<u32> words;
    std::FILE* from = std::fopen(file, "rb");
    CHECK(from != nullptr);
    for (u32 word; std::fread(&word, sizeof word, 1, from) == 1;) words.push_back(word);
    std::fclose(from);
    return words;
}

// Runs plans of float32 sums, one a rank, on units of n elements. Says where buffers and slots lie, which is stored to
// once before the call and not touched after it, and what the kernels count. Plans have no scratch.
void traffic(u64 n, u64 tile, char** files, u32 ranks) {
    World world(ranks);
    std::vector<std::array<Block, 2>> buffers(ranks);
    std::mutex talking;
    on_threads(ranks, [&](u32 rank) {
        ThreadMemory memory(world, rank);
        Settings mine = settings(4);
        mine.patience = {0, 0};
        Communicator communicator(rank, ranks, memory, {}, mine);
        Plan plan(communicator, read_words(files[rank]), 1, "traffic");
        CHECK(plan.header().scratch == 0);
        const u64 unit = n * sizeof(float),
                  bytes[] = {plan.header().input_blocks * unit, plan.header().output_blocks * unit};
        auto& [input, output] = buffers[rank] = {lines(bytes[0]), lines(bytes[1])};
        const Call call{static_cast<char*>(input.get()),
                        static_cast<char*>(output.get()),
                        nullptr,
                        nullptr,
                        0,
                        n,
                        tile,
                        type_named("float32"),
                        0,
                        true};
        CHECK(communicator.run(plan, call).fault == Fault::kNone);
        const std::lock_guard<std::mutex> held(talking);
        const Traffic moved = communicator.traffic();
        std::printf("counted %u %llu %llu\n", rank, moved.loaded, moved.stored);
        std::printf("memory %p %llu\nmemory %p %llu\n", input.get(), bytes[0], output.get(), bytes[1]);
    });
    for (const auto& [name, block] : world.windows)
        std::printf("memory %p %llu\n", static_cast<void*>(static_cast<char*>(block.get()) + kPage), World::kBytes);
}

}  // namespace

int main(int arguments, char** words) {
    if (arguments > 4 && std::string(words[1]) == "traffic") {
        traffic(std::strtoull(words[2], nullptr, 0), std::strtoull(words[3], nullptr, 0), words + 4,
                u32(arguments - 4));
        return 0;
    }
    const bool only_litmus = arguments > 1 && std::string(words[1]) == "litmus";
    litmus_slots();
    litmus_lent();
    litmus_round();
    litmus_semaphore();
    litmus_header();
    litmus_state();
    if (only_litmus) return 0;
    for (const u64 first : {u64(0), ~u64(0) - 1}) failed_later(first);
    failed_before();
    past_the_caches();
    looks_at_buffers();
    bad_plans();
    rings();
    rings_wrap();
    multicasts();
    semaphores_count_on();
    rounds();
    lent();
    contests();
    contested();
    for (const bool two_rounds : {false, true}) lent_in_vain(two_rounds);
    reached_in_vain();
    teams();
    team_fails();
    background();
    return 0;
}
