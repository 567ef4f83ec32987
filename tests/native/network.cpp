// Ranks on several nodes: those of one share memory, and a wire connects nodes.

#include "transport/network.h"

#include <unistd.h>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "plans.h"
#include "post.h"
#include "ranks.h"
#include "runner.h"
#include "transport/emulated.h"

namespace hocket::test {
namespace {

// Calls `body(rank, communicator)` on a thread for each rank. By rank: `nodes`, and `lifelines`, if there are any.
// `latency`: of an emulated network.
template <class Body> void on_nodes(const std::vector<u32>& nodes, Post& post, u64 slots, Body body,
                                    const std::vector<std::vector<int>>& lifelines = {}, u64 latency = 0) {
    const u32 ranks = u32(nodes.size());
    std::vector<std::unique_ptr<World>> worlds;
    for (u32 r = 0; r < ranks; ++r) worlds.push_back(std::make_unique<World>(ranks));  // by node
    on_threads(ranks, [&](u32 rank) {
        ThreadMemory memory(*worlds[nodes[rank]]);
        u64 sent_at = 0;
        EmulatedNetwork emulated(post.wire(rank), latency, 0.5, &sent_at, Clock::monotonic);
        Network network(rank, nodes, memory.control(), latency != 0 ? emulated.wire() : post.wire(rank));
        Settings mine = settings(slots);
        mine.tunables.lent_tile_bytes = 256;  // so that few tiles are a message where these are direct
        mine.network = &network;
        Communicator communicator(rank, ranks, memory, lifelines.empty() ? std::vector<int>{} : lifelines[rank], mine);
        body(rank, communicator);
    });
}

Outcome run(Communicator& communicator, Plan& plan, std::vector<int>& from, std::vector<int>* to, u64 tile,
            double timeout = 0) {
    char* const input = reinterpret_cast<char*>(from.data());
    char* const output = to == nullptr ? nullptr : reinterpret_cast<char*>(to->data());
    Call call{input, output, nullptr, nullptr, 0, from.size(), tile, type_code("int32"), 0, true};
    call.timeout = timeout;
    return communicator.run(plan, call);
}

Outcome sum(Communicator& communicator, Plan& plan, std::vector<int>& data, u64 tile = 0, double timeout = 0) {
    return run(communicator, plan, data, nullptr, tile, timeout);
}

const std::vector<std::vector<u32>> kPlacements{{0, 1}, {0, 0, 1}, {0, 1, 0}, {0, 1, 2}, {0, 1, 1, 0}, {0, 1, 2, 3, 4}};

TEST(network_rings) {
    for (const std::vector<u32>& nodes : kPlacements)
        for (const u64 slots : {2, 4}) {
            const u32 ranks = u32(nodes.size());
            Post post(ranks, slots);
            on_nodes(nodes, post, slots, [&](u32 rank, Communicator& communicator) {
                Plan fused(communicator, ring(rank, ranks, 2, true), 1, "ring");
                Plan exchange(communicator, exchanged(rank, ranks), 2, "exchanged");
                for (u32 round = 0; round < 40; ++round) {
                    std::vector<int> data(round % 10 == 3 ? 30'000 : round * 37 % 401);
                    for (u64 i = 0; i < data.size(); ++i) data[i] = int(i * 7 + rank * 1000 + round);
                    Plan& plan = round % 3 == 2 ? exchange : fused;
                    CHECK(sum(communicator, plan, data, round % 2 && data.size() < 1000 ? 64 : 0).fault ==
                          Fault::kNone);
                    for (u64 i = 0; i < data.size(); ++i)
                        CHECK(data[i] == int(ranks * (i * 7 + round) + 1000 * (ranks * (ranks - 1) / 2)));
                }
                CHECK(communicator.barrier().fault == Fault::kNone);
            });
        }
}

// What a wire carries is what the schedule sends from node to node, and no more: a ring of two, of 1000 ints, sends
// half of them twice, rounded to whole chunks.
TEST(network_bytes) {
    Post post(2, 1);
    on_nodes({0, 1}, post, 2, [&](u32 rank, Communicator& communicator) {
        Plan plan(communicator, ring(rank, 2, 2, true), 1, "ring");
        std::vector<int> data(1000, 1);
        CHECK(sum(communicator, plan, data).fault == Fault::kNone);
        CHECK(communicator.network()->moved().bytes == 4000);
        CHECK(communicator.network()->moved().messages == 2);
    });
}

// The wire takes direct messages from the sender's buffer to the receiver's, several tiles at a time, also those that a
// rank then hands on. When a call is over, nobody reads its input any more.
TEST(network_direct) {
    for (const std::vector<u32>& nodes : kPlacements)
        for (const u64 slots : {2, 4}) {
            const u32 ranks = u32(nodes.size());
            Post post(ranks, slots);
            on_nodes(nodes, post, slots, [&](u32 rank, Communicator& communicator) {
                Plan all(communicator, transposed(rank, nodes, true), 1, "batched");
                Plan pairs(communicator, transposed(rank, nodes, false), 2, "pairs");
                Plan one(communicator, chain(rank, nodes), 3, "chain");
                for (const u64 lines : {0, 1, 7, 100})  // of a chunk
                    for (const u64 tile : {0, 64}) {
                        const u64 n = lines * kAlign / sizeof(int) * ranks;
                        std::vector<int> from(n), to(n);
                        const auto moves = [&](Plan& plan) {
                            std::fill(to.begin(), to.end(), -1);
                            CHECK(run(communicator, plan, from, &to, tile).fault == Fault::kNone);
                            std::fill(from.begin(), from.end(), -2);
                        };
                        for (Plan* const plan : {&all, &pairs}) {
                            std::fill(from.begin(), from.end(), int(rank));
                            moves(*plan);
                            for (u64 i = 0; i < n; ++i) CHECK(to[i] == int(i / (n / ranks)));
                        }
                        for (u64 i = 0; i < n; ++i) from[i] = int(i + tile);
                        moves(one);
                        for (u64 i = 0; rank != 0 && i < n; ++i) CHECK(to[i] == int(i + tile));
                    }
            });
            CHECK(post.forgotten() == 0);
        }
}

// The counters of a connection go on, whether its messages are direct or not.
TEST(network_direct_and_not) {
    Post post(2, 1);
    on_nodes({0, 1}, post, 2, [&](u32 rank, Communicator& communicator) {
        Writer through(rank, 2, 1, 0, 2);
        through.block();
        if (rank == 0) through.step({{kInput, 0}}, {{kSend, 1}});
        else through.step({{kReceive, 0}}, {{kInput, 0}});
        Plan direct(communicator, chain(rank, {0, 1}, kBatched), 1, "chain"),
            slots(communicator, through.words(), 2, "through slots");
        for (const u64 n : {500, 1000, 3, 5000}) {
            std::vector<int> data(n, rank == 0 ? int(n) : -1);
            const u64 before = communicator.network()->moved().messages;
            CHECK(run(communicator, direct, data, &data, 64).fault == Fault::kNone && data.back() == int(n));
            const u64 after = communicator.network()->moved().messages;
            CHECK(rank != 0 || after - before == (n * sizeof(int) + 255) / 256);
            std::fill(data.begin(), data.end(), rank == 0 ? 7 : -1);
            CHECK(run(communicator, slots, data, &data, 64).fault == Fault::kNone && data.back() == 7);
        }
    });
}

// Two messages a tile, of which one would lie where the other does.
TEST(network_direct_once) {
    Post post(2, 1);
    on_nodes({0, 1}, post, 2, [&](u32 rank, Communicator& communicator) {
        Writer writer(rank, 2, 2, 0, 2);
        writer.between({0, 1}, kDirect);
        writer.block();
        for (const u32 chunk : {0u, 1u}) writer.step({{kInput, chunk}}, {{kSend, 1 - rank}});
        bool refused = false;
        try {
            const Plan plan(communicator, writer.words(), 1, "twice");
        } catch (const std::invalid_argument&) {
            refused = true;
        }
        CHECK(refused);
    });
}

// What the wire may still store to after a call that failed is exposed, which slots are not.
TEST(network_exposed) {
    for (const auto& [direct, sends] : {std::pair(true, false), {true, true}, {false, false}}) {
        Post post(2, 3);
        on_nodes({0, 1}, post, 2, [&](u32 rank, Communicator& communicator) {
            Writer writer(rank, 2, 1, 1, 2);
            if (direct) writer.between({0, 1}, kDirect);
            writer.block();
            if (rank == 1) writer.step({{kInput, 0}}, {{kScratch, 0}});
            else if (sends) writer.step({{kInput, 0}}, {{kSend, 1}});
            else writer.step({{kReceive, 1}}, {{kInput, 0}});
            std::vector<int> data(8);
            Plan plan(communicator, writer.words(), 1, "a message that never comes");
            const Outcome outcome = sum(communicator, plan, data, 0, 0.2);
            CHECK((outcome.fault == Fault::kNone) == (rank == 1));
            CHECK(outcome.exposed == (rank == 0 && direct));
        });
    }
}

// Headers take ceil(log2 nodes) messages of a leader, and none of another rank.
TEST(network_headers) {
    const std::vector<u32> nodes{0, 0, 1, 2, 3, 4, 4};
    Post post(7, 1);
    on_nodes(nodes, post, 2, [&](u32 rank, Communicator& communicator) {
        CHECK(communicator.barrier().fault == Fault::kNone);
        CHECK(communicator.network()->said().messages == (rank == 1 || rank == 6 ? 0 : 3));
    });
    std::vector<u32> many(64);
    for (u32 r = 0; r < many.size(); ++r) many[r] = r / 4;
    Post wide(64, 2);
    on_nodes(many, wide, 2, [&](u32 rank, Communicator& communicator) {
        for (int call = 0; call < 3; ++call) CHECK(communicator.barrier().fault == Fault::kNone);
        CHECK(communicator.network()->said().messages == (rank % 4 == 0 ? 3 * 4 : 0));
    });
}

// Short messages go with the headers, and nothing else goes; also where ranks differ in how many bytes they have there,
// and then make the call again.
TEST(network_eager) {
    for (const std::vector<u32>& nodes : kPlacements) {
        const u32 ranks = u32(nodes.size());
        Post post(ranks, 5);
        on_nodes(nodes, post, 2, [&](u32 rank, Communicator& communicator) {
            Plan plan(communicator, exchanged(rank, ranks), 1, "exchanged");
            const u64 most = most_eager(ranks, false, true, true) / sizeof(int);
            for (const u64 n : {u64(1), u64(12), u64(13), u64(500), most}) {
                for (const bool differ : {true, false}) {
                    std::vector<int> data(differ && rank == 1 ? n + 40 : n, int(rank + n));
                    const Outcome outcome = sum(communicator, plan, data, n == most ? kMostEager : 0);
                    CHECK(outcome.fault == (differ ? Fault::kMismatch : Fault::kNone));
                    for (const int found : data)
                        CHECK(found == (differ ? int(rank + n) : int(ranks * n + ranks * (ranks - 1) / 2)));
                }
            }
            CHECK(communicator.network()->moved().messages == 0);
            std::vector<int> data(kExchanged, 1);
            CHECK(sum(communicator, plan, data).fault == Fault::kNone && data.back() == int(ranks));
            CHECK(communicator.network()->moved().messages != 0);
        });
    }
}

// What is more than an MPI sends at once goes by itself, behind the lines: in as few messages as there can be. So it
// does on a network that holds messages back, and where the wire keeps them.
TEST(network_eager_apart) {
    for (const u64 latency : {u64(0), u64(100'000)}) {
        Post post(2, 3, latency != 0);
        on_nodes(
            {0, 1}, post, 2,
            [&](u32 rank, Communicator& communicator) {
                Plan plan(communicator, exchanged(rank, 2), kLook + 1, "exchanged");  // ranks read no whole headers
                u64 before = 0;
                for (const auto& [kilobytes, messages] :
                     {std::pair<u64, u64>{61, 1}, {62, 2}, {63, 3}, {124, 3}, {128, 4}}) {
                    std::vector<int> data(kilobytes << 8, int(rank));
                    CHECK(sum(communicator, plan, data, kMostEager).fault == Fault::kNone);
                    for (const int found : data) CHECK(found == 1);
                    CHECK(communicator.network()->said().messages - before == messages);
                    before = communicator.network()->said().messages;
                }
                CHECK(communicator.network()->moved().messages == 0);
                std::vector<int> data(40 << 8, 1);  // nobody has asked for one round
                CHECK(sum(communicator, plan, data).fault == Fault::kNone);
                CHECK(communicator.network()->moved().messages != 0);
            },
            {}, latency);
        CHECK(post.forgotten() == 0);
    }
}

// A rank that does not enter a call is named by all others, whether they wait for it, or for one that does: a leader
// and another, in the first round and later.
TEST(network_silent) {
    const std::vector<u32> nodes{0, 0, 1, 1, 2, 2, 3, 3};
    for (const u32 silent : {0u, 3u, 6u}) {
        Post post(8, silent);
        std::atomic<u32> ended{0};
        on_nodes(nodes, post, 2, [&](u32 rank, Communicator& communicator) {
            CHECK(communicator.barrier().fault == Fault::kNone);
            if (rank != silent) {
                const Outcome outcome = communicator.barrier(0.3);
                CHECK(outcome.fault == Fault::kTimeout || outcome.fault == Fault::kPeer);
                CHECK(outcome.rank == silent);
                ++ended;
            }
            while (ended.load() != 7) std::this_thread::yield();
        });
    }
}

// Ranks that enter a call at different times are late at different times, and name the last one, which never does.
TEST(network_late) {
    for (const std::vector<u32>& nodes : {std::vector<u32>{0, 1, 2, 3}, {0, 0, 1, 1, 2, 2}}) {
        const u32 silent = u32(nodes.size()) - 1;
        Post post(silent + 1, 23, true);  // so that rank 2 of four waits for rank 0, which waits for rank 3
        std::atomic<u32> ended{0};
        on_nodes(nodes, post, 2, [&](u32 rank, Communicator& communicator) {
            CHECK(communicator.barrier().fault == Fault::kNone);
            const bool waits_less = rank == 1 || (rank == 0 && silent == 3);
            if (waits_less) std::this_thread::sleep_for(std::chrono::milliseconds(400));
            if (rank != silent) {
                const Outcome outcome = communicator.barrier(0.8);
                CHECK(outcome.fault != Fault::kNone && outcome.rank == silent);
                ++ended;
                ended.notify_all();
            }
            for (u32 found = ended; found != silent; found = ended) ended.wait(found);
        });
    }
}

// Rank 2 waits in a call for what another never sends, and rank 3 for rank 2; in a circle, rank 2 also waits for
// rank 3. Both name the silent one, whichever is first to give up, and not the one that has done its part.
TEST(network_chain) {
    for (const u32 silent : {0u, 1u})
        for (const bool circle : {false, true}) {
            Post post(4, 19);
            std::atomic<u32> ended{0};
            on_nodes({0, 0, 1, 2}, post, 2, [&](u32 rank, Communicator& communicator) {
                Writer writer(rank, 4, 1, 2, 2);
                writer.block();
                if (rank == 3) {
                    writer.step({{kReceive, 2}}, {{kScratch, 0}});
                    if (circle) writer.step({{kScratch, 0}}, {{kSend, 2}});
                } else if (rank == 2) {
                    if (circle) writer.step({{kReceive, 3}}, {{kScratch, 1}});
                    if (circle) writer.block();
                    writer.step({{kReceive, silent}}, {{kSend, 3}});
                } else {
                    writer.step({{kInput, 0}}, {{kScratch, 0}});
                }
                std::vector<int> data(8);
                Plan plan(communicator, writer.words(), 1, "a message that never comes");
                const Outcome outcome = sum(communicator, plan, data, 0, 0.3);
                if (rank < 2) CHECK(outcome.fault == Fault::kNone);
                else CHECK(outcome.fault != Fault::kNone && outcome.rank == silent);
                for (++ended; ended.load() != 4; std::this_thread::yield())
                    if (rank >= 2) communicator.network()->progress();
            });
        }
}

// Ranks that differ all learn what every rank has said, and go on.
TEST(network_mismatch) {
    for (const std::vector<u32>& nodes : kPlacements) {
        const u32 ranks = u32(nodes.size());
        Post post(ranks, 3);
        on_nodes(nodes, post, 2, [&](u32 rank, Communicator& communicator) {
            Plan plan(communicator, ring(rank, ranks, 2, true), 1, "ring");
            std::vector<int> data(rank == ranks - 1 ? 20 : 10, 1);
            const Outcome differs = sum(communicator, plan, data);
            CHECK(differs.fault == Fault::kMismatch && differs.rank == ranks - 1 && differs.why().said.size() == ranks);
            for (u32 r = 0; r < ranks; ++r) CHECK(differs.why().said[r].terms.n == (r == ranks - 1 ? 20 : 10));
            const std::string word = "word " + std::to_string(rank);
            CHECK(communicator.exchange(word, kUse).fault == Fault::kNone);
            for (u32 r = 0; r < ranks; ++r) CHECK(communicator.control().said(r).text == "word " + std::to_string(r));
            const Outcome refused = rank == 0 ? communicator.control().refuse("has no data") : communicator.barrier();
            CHECK(refused.fault == Fault::kRefused && refused.rank == 0 && refused.why().text == "has no data");
            std::vector<int> more(10, 1);
            CHECK(sum(communicator, plan, more).fault == Fault::kNone && more[0] == int(ranks));
        });
    }
}

// Ranks that close together leave nothing behind.
TEST(network_farewell) {
    for (const std::vector<u32>& nodes : kPlacements) {
        Post post(u32(nodes.size()), 17, true);
        std::atomic<u64> told{0};
        on_nodes(nodes, post, 2, [&](u32, Communicator& communicator) {
            CHECK(communicator.barrier().fault == Fault::kNone);
            communicator.control().leave();
            communicator.network()->progress();
            ++told;
            while (told.load() != nodes.size()) std::this_thread::yield();
            communicator.network()->finish();
        });
        CHECK(post.waiting() == 0);
    }
}

// A rank that fails or leaves is known to those of other nodes, by name: that it left not before they have done its
// last call, though it says so before what it has sent arrives; that it failed in that call, if they still are in it.
TEST(network_faults) {
    for (const std::vector<u32>& nodes : kPlacements)
        for (const bool leaves : {false, true}) {
            const u32 ranks = u32(nodes.size());
            Post post(ranks, 5, true);
            on_nodes(nodes, post, 2, [&](u32 rank, Communicator& communicator) {
                Plan plan(communicator, ring(rank, ranks, 2, true), 1, "ring");
                std::vector<int> data(5000, 1);
                Outcome outcome = sum(communicator, plan, data);
                if (rank == 1) {
                    CHECK(outcome.fault == Fault::kNone);
                    if (leaves) communicator.control().leave();
                    else communicator.control().fail(1, "has had enough");
                    communicator.network()->finish();
                    return;
                }
                CHECK(outcome.fault == Fault::kNone || !leaves);
                if (outcome.fault == Fault::kNone) outcome = sum(communicator, plan, data);
                CHECK(outcome.fault == Fault::kPeer && outcome.rank == 1);
                CHECK(outcome.why().text == (leaves ? "closed its communicator" : "has had enough"));
            });
        }
}

// A leader that has posted its header and ends: the rank of its node waits for it, as it would have stored the headers
// of other nodes, and tells those.
TEST(network_leader) {
    int line[2];
    CHECK(::pipe(line) == 0);
    Post post(3, 9);
    on_nodes({0, 1, 1}, post, 2,
             [&](u32 rank, Communicator& communicator) {
                 if (rank == 1) {
                     communicator.control().post({{}, "barrier", ControlPlane::kBarrier});
                     ::close(line[1]);
                     return;
                 }
                 const Outcome outcome = communicator.barrier();
                 CHECK(outcome.fault == Fault::kPeer && outcome.rank == 1 && outcome.why().text == "has ended");
             },
             {{}, {}, {-1, line[0], -1}});
    ::close(line[0]);
}

// A rank ends in a call that others have done, and has not sent what a rank of another node waits for there: whoever
// sees its end, on its own node or not, tells that rank.
TEST(network_gone) {
    for (const std::vector<u32>& nodes : {std::vector<u32>{0, 0, 1, 2}, {0, 1, 2, 3}}) {
        int line[2];
        CHECK(::pipe(line) == 0);
        Post post(4, 11);
        on_nodes(nodes, post, 2,
                 [&](u32 rank, Communicator& communicator) {
                     Writer writer(rank, 4, 1, 1, 2);
                     writer.block();
                     if (rank == 0) writer.step({{kReceive, 2}}, {{kSend, 3}});
                     else if (rank == 3) writer.step({{kReceive, 0}}, {{kInput, 0}});
                     else writer.step({{kInput, 0}}, {{kScratch, 0}});
                     std::vector<int> data(8);
                     Plan plan(communicator, writer.words(), 1, "a message that never comes");
                     Outcome outcome = sum(communicator, plan, data);
                     if (rank == 1) ::close(line[1]);
                     if (outcome.fault == Fault::kNone) outcome = communicator.barrier();
                     CHECK(outcome.fault == Fault::kPeer && outcome.rank == 0 && outcome.why().text == "has ended");
                 },
                 {{}, {line[0], -1, -1, -1}, {}, {}});
        ::close(line[0]);
    }
}

// What a rank of another node has sent before it ended still counts, though its end is known before it comes.
TEST(network_lingers) {
    int line[2];
    CHECK(::pipe(line) == 0);
    ::close(line[1]);
    Post post(2, 13);
    on_nodes(
        {0, 1}, post, 2,
        [&](u32 rank, Communicator& communicator) {
            Plan plan(communicator, ring(rank, 2, 2, true), 1, "ring");
            std::vector<int> data(5000, 1);
            CHECK(sum(communicator, plan, data).fault == Fault::kNone && data.back() == 2);
        },
        {{}, {line[0], -1}}, 50'000'000);
    ::close(line[0]);
}

u64 hand = 0;  // of a clock, in nanoseconds

// Two ranks of a node send 1000 and 500 bytes, one byte a nanosecond, and each comes 300 later.
TEST(network_takes_time) {
    hand = 10'000;
    Post post(3, 1);
    const auto clock = [] { return hand; };
    u64 sent_at = 0;
    EmulatedNetwork one(post.wire(0), 300, 1, &sent_at, clock), other(post.wire(1), 300, 1, &sent_at, clock);
    const Wire wires[] = {one.wire(), other.wire(), post.wire(2)};
    const std::vector<char> given(1000, 'x');
    std::vector<char> found(1500);
    Ticket tickets[4];
    const auto is_done = [&](u32 rank, Ticket& ticket) {  // it may take the post some looks
        bool done = false;
        for (u32 look = 0; look < 100 && !done; ++look) CHECK(wires[rank].test(wires[rank].context, ticket, done) == 0);
        return done;
    };
    for (const u32 rank : {0u, 1u}) {
        const u64 bytes = rank == 0 ? 1000 : 500;
        CHECK(wires[2].receive(wires[2].context, &found[rank * 1000], bytes, rank, 7, tickets[2 + rank]) == 0);
        CHECK(wires[rank].send(wires[rank].context, given.data(), bytes, 2, 7, tickets[rank]) == 0);
    }
    hand = 11'299;
    CHECK(!is_done(0, tickets[0]) && !is_done(2, tickets[2]));
    hand = 11'300;
    CHECK(is_done(0, tickets[0]) && is_done(2, tickets[2]));
    hand = 11'799;
    CHECK(!is_done(1, tickets[1]) && !is_done(2, tickets[3]));
    hand = 11'800;
    CHECK(is_done(1, tickets[1]) && is_done(2, tickets[3]));
    CHECK(std::string(found.begin(), found.end()) == std::string(1500, 'x'));
}

// Rings over a network that takes longer lose nothing.
TEST(network_takes_long) {
    for (const std::vector<u32>& nodes : kPlacements) {
        const u32 ranks = u32(nodes.size());
        Post post(ranks, 3);
        on_nodes(
            nodes, post, 2,
            [&](u32 rank, Communicator& communicator) {
                Plan plan(communicator, ring(rank, ranks, 2, true), 1, "ring");
                for (u32 round = 0; round < 5; ++round) {
                    std::vector<int> data(round * 500, 1);
                    CHECK(sum(communicator, plan, data).fault == Fault::kNone);
                    for (const int value : data) CHECK(value == int(ranks));
                }
            },
            {}, 20'000);
    }
}

// Nobody sends far ahead of who receives, also where the wire keeps what was sent: one that keeps too much may read no
// more, and what a rank waits for would be behind what it does not receive yet.
TEST(network_ahead) {
    for (const u64 slots : {2, 4, 8}) {
        Post post(2, 11, true);
        World world(2);
        ThreadMemory memory(world);
        Network network(0, {0, 1}, memory.control(), post.wire(0));
        Window* const window = network.window(1, 0, true);
        CHECK(network.reserve(window, 16 * 64) == 0);
        u64 &filled = window->counters->filled.count, &freed = window->counters->freed[0].count;
        // What waits on the wire after a call of so many messages that nobody receives.
        const auto sent = [&](u64 places, u64 messages) {
            const u64 before = post.waiting(), last = filled + messages;
            u64* const lengths = network.open(window, places, 64, messages);
            for (u32 look = 0; look < 1000; ++look) {
                if (filled != last && filled - freed < places) lengths[filled++ % places] = 64;
                network.progress();
            }
            return post.waiting() - before;
        };
        CHECK(sent(slots, slots) == slots && network.outstanding() == 0);  // a short call waits for nobody
        CHECK(sent(2 * slots, 3) == 3 && network.outstanding() == 0);
        CHECK(sent(slots, 100) == slots && network.outstanding() != 0);
    }
}

// A wire that fails ends the communicator.
TEST(network_cut) {
    Post post(2, 7);
    on_nodes({0, 1}, post, 2, [&](u32 rank, Communicator& communicator) {
        Plan plan(communicator, ring(rank, 2, 2, true), 1, "ring");
        std::vector<int> data(5000, 1);
        CHECK(sum(communicator, plan, data).fault == Fault::kNone);
        post.cut(rank);
        const Outcome outcome = sum(communicator, plan, data);
        CHECK(outcome.fault == Fault::kPeer && outcome.why().text == "cannot be reached: the line was cut");
    });
}

}  // namespace
}  // namespace hocket::test
