// Schedules over a port that is no shared memory: stepped in any order, and on threads.

#include <sched.h>
#include <memory>
#include <thread>

#include "core/interpreter.h"
#include "delayed_queue.h"
#include "plans.h"
#include "runner.h"
#include "runtime/cpu.h"

namespace hocket::test {
namespace {

static_assert(Port<DelayedEnd, Cpu> && !ZeroCopyPort<DelayedEnd> && !EagerPort<DelayedEnd>);

// What one rank of a call is given, and where its result begins.
struct Part {
    std::vector<u32> plan;
    std::vector<u32> buffers[2];  // input and output, before the call
    u32 result, first;            // the buffer, and the element
    std::vector<u32> expected;
};

// `n` elements a unit, of four bytes.
struct DelayedCall {
    std::string name;
    u32 type;
    u64 n;
    std::vector<Part> parts;
};

constexpr u64 kTile = 64;

class Rank {
  public:
    // `places` of each connection, beyond those that the schedule needs.
    Rank(Network& network, const DelayedCall& call, u32 rank, u32 places, bool together)
        : part_(call.parts[rank]),
          buffers_{part_.buffers[0], part_.buffers[1]} {
        CHECK(view_plan(part_.plan.data(), part_.plan.size(), view_) == nullptr && !view_.lends);
        const PlanHeader& h = *view_.header;
        geometry_ = cut(call.n, 4, h.chunks, h.widest, 0, kTile);
        scratch_.resize(h.scratch * geometry_.chunk);
        for (u32 c = 0; c < h.connections; ++c)
            ends_.emplace_back(network, rank, view_.connections[c], h.slots + places, h.widest * geometry_.tile);
        cursors_.resize(h.blocks);
        const auto whole = [&](u32 place) {
            return Buffer{reinterpret_cast<char*>(buffers_[place].data()), geometry_.unit, h.chunks};
        };
        places_[kInput] = whole(kInput);
        places_[kOutput] = whole(kOutput);
        places_[kScratch] = {scratch_.data(), h.scratch * geometry_.chunk, h.scratch};
        execution_ = std::make_unique<Execution<Cpu, DelayedEnd>>(view_, geometry_, places_, nullptr, cursors_.data(),
                                                                  ends_.data());
        kernel_ = view_.combines ? kernels().types[call.type].reduce[0] : kernels().move;
        together_ = together;
    }

    u32 blocks() const { return view_.header->blocks; }

    Progress visit(u32 first, u32 end) {
        Cpu cpu{kernel_, &nobody_, 0, together_, false};
        std::vector<char*> pointers(2 * view_.most_operands);
        return execution_->advance(cpu, {pointers.data(), nullptr}, first, end);
    }

    bool stalled(u32 block, Stall& stall) { return execution_->stalled(block, stall); }

    bool is_right() const {
        const u32* result = buffers_[part_.result].data() + part_.first;
        for (size_t i = 0; i < part_.expected.size(); ++i)
            if (result[i] != part_.expected[i]) return false;
        for (const DelayedEnd& end : ends_)
            if (!end.idle()) return false;
        return true;
    }

  private:
    const Part& part_;
    PlanView view_{};
    Geometry geometry_{};
    std::vector<u32> buffers_[2];
    std::vector<char> scratch_;
    std::vector<DelayedEnd> ends_;
    std::vector<Cursor> cursors_;
    Buffer places_[3]{};
    std::unique_ptr<Execution<Cpu, DelayedEnd>> execution_;
    Kernel kernel_;
    RankBlock nobody_{};
    bool together_;
};

using Ranks = std::vector<std::unique_ptr<Rank>>;

Ranks ranks_of(const DelayedCall& call, Network& network, u32 places, bool together) {
    Ranks ranks;
    for (u32 rank = 0; rank < call.parts.size(); ++rank)
        ranks.push_back(std::make_unique<Rank>(network, call, rank, places, together));
    return ranks;
}

// Runs one thread block, or lets something arrive, at a time, in an order drawn from the seed. Whether it comes to an
// end: else nothing can go on. With a seed that is a multiple of four, things arrive only when nothing else can go on.
bool finishes(Ranks& ranks, Network& network, u64 seed) {
    std::mt19937_64 random(seed);
    std::vector<std::pair<u32, u32>> all, awake;  // rank and thread block; those that may be able to go on
    for (u32 rank = 0; rank < ranks.size(); ++rank)
        for (u32 block = 0; block < ranks[rank]->blocks(); ++block) all.emplace_back(rank, block);
    awake = all;
    for (;;) {
        if (awake.empty() || random() % 8 < seed % 4) {
            if (network.deliver()) awake = all;
            else if (awake.empty()) break;
        }
        if (awake.empty()) continue;
        std::swap(awake[random() % awake.size()], awake.back());
        const auto [rank, block] = awake.back();
        if (ranks[rank]->visit(block, block + 1) == Progress::kMoved) awake = all;
        else awake.pop_back();
    }
    for (const auto& [rank, block] : all) {
        Stall stall{};
        if (ranks[rank]->stalled(block, stall)) return false;
    }
    return true;
}

// Two threads a rank; each lets something arrive when it can not go on.
void run_on_threads(Ranks& ranks, Network& network) {
    std::vector<std::thread> threads;
    for (const std::unique_ptr<Rank>& rank : ranks)
        for (const u32 half : {0u, 1u})
            threads.emplace_back([&network, half, rank = rank.get()] {
                const u32 middle = rank->blocks() / 2;
                const u32 first = half == 0 ? 0 : middle, end = half == 0 ? middle : rank->blocks();
                for (;;) {
                    const Progress progress = rank->visit(first, end);
                    if (progress == Progress::kDone) return;
                    if (progress == Progress::kStalled && !network.deliver()) ::sched_yield();
                }
            });
    for (std::thread& thread : threads) thread.join();
    while (network.deliver()) continue;
}

void run(const DelayedCall& call) {
    const auto check = [&](const Ranks& ranks, const char* how, u64 seed) {
        for (u32 rank = 0; rank < ranks.size(); ++rank)
            if (!ranks[rank]->is_right()) {
                std::fprintf(stderr, "%s, n = %llu: rank %u is wrong %s %llu\n", call.name.c_str(), call.n, rank, how,
                             seed);
                std::exit(1);
            }
    };
    for (u64 seed = 0; seed < 8; ++seed) {
        Network network(seed);
        Ranks ranks = ranks_of(call, network, u32(seed % 3), false);
        if (!finishes(ranks, network, seed)) {
            std::fprintf(stderr, "%s, n = %llu: stuck with seed %llu\n", call.name.c_str(), call.n, seed);
            std::exit(1);
        }
        check(ranks, "with seed", seed);
    }
    Network network(8);
    Ranks ranks = ranks_of(call, network, 0, true);
    run_on_threads(ranks, network);
    check(ranks, "on threads, with seed", 8);
}

// The parts of a plan by hand, in place on int32; the result is the same on all ranks.
DelayedCall by_hand(const char* name, u32 ranks, u64 n, std::vector<u32> (*plan)(u32 rank, u32 ranks)) {
    DelayedCall call{name, type_code("int32"), n, {}};
    for (u32 rank = 0; rank < ranks; ++rank) {
        Part part{plan(rank, ranks), {}, kInput, 0, {}};
        for (u32 i = 0; i < n; ++i) {
            part.buffers[kInput].push_back(i * 7 + rank * 1000);
            part.expected.push_back(ranks * i * 7 + 1000 * (ranks * (ranks - 1) / 2));
        }
        call.parts.push_back(part);
    }
    return call;
}

TEST(delayed_rings) {
    for (u32 ranks = 2; ranks <= 4; ++ranks)
        for (const u64 n : {0, 1, 101}) {
            run(by_hand("ring", ranks, n, [](u32 rank, u32 ranks) { return ring(rank, ranks, 2, true); }));
            run(by_hand("ring in order", ranks, n, [](u32 rank, u32 ranks) { return ring(rank, ranks, 1, false); }));
        }
}

// Two ranks that send two messages each before they receive any: with one place they wait for each other, with two
// they do not.
TEST(delayed_places) {
    const auto plan = [](u32 rank, u32 ranks) {
        Writer writer(rank, ranks, 2, 0, 1);
        writer.block();
        for (const u32 chunk : {0u, 1u}) writer.step({{kInput, chunk}}, {{kSend, 1 - rank}});
        for (const u32 chunk : {0u, 1u}) writer.step({{kReceive, 1 - rank}, {kInput, chunk}}, {{kInput, chunk}});
        return writer.words();
    };
    const DelayedCall call = by_hand("both send first", 2, 30, plan);
    for (u64 seed = 0; seed < 8; ++seed)
        for (const u32 places : {0u, 1u}) {
            Network network(seed);
            Ranks ranks = ranks_of(call, network, places, false);
            CHECK(finishes(ranks, network, seed) == (places == 1));
            for (const u32 rank : {0u, 1u}) {
                Stall stall{};
                CHECK(ranks[rank]->stalled(0, stall) == (places == 0));
                CHECK(places == 1 || (stall.remote && stall.peer == 1 - rank && stall.step == 1));
                CHECK(places == 0 || ranks[rank]->is_right());
            }
        }
}

// Calls that tests/native/schedules.py has written. What it writes before words is how many there are.
TOOL(delayed) {
    CHECK(arguments.size() == 1);
    const std::vector<u32> words = read_words(arguments[0]);
    size_t at = 0, calls = 0;
    const auto many = [&] {
        const u32 count = words.at(at++);
        CHECK(count <= words.size() - at);
        at += count;
        return std::vector<u32>(words.begin() + long(at - count), words.begin() + long(at));
    };
    for (; at < words.size(); ++calls) {
        DelayedCall call{"", type_code("float32"), 0, {}};
        for (const u32 letter : many()) call.name += char(letter);
        call.n = words.at(at++);
        call.parts.resize(words.at(at++));
        for (Part& part : call.parts) {
            part.plan = many();
            for (std::vector<u32>& buffer : part.buffers) buffer = many();
            part.result = words.at(at++);
            part.first = words.at(at++);
            part.expected = many();
            CHECK(part.result < 2 && part.first + part.expected.size() <= part.buffers[part.result].size());
        }
        run(call);
    }
    std::printf("%zu calls\n", calls);
}

}  // namespace
}  // namespace hocket::test
