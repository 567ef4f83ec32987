// Plans, written by hand or read from files, and the types that they run on.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "core/plan.h"
#include "device/kernels.h"
#include "runner.h"

namespace hocket::test {

inline std::vector<u32> read_words(const std::string& file) {
    std::vector<u32> words;
    std::FILE* from = std::fopen(file.c_str(), "rb");
    CHECK(from != nullptr);
    for (u32 word; std::fread(&word, sizeof word, 1, from) == 1;) words.push_back(word);
    std::fclose(from);
    return words;
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
        : header_{kPlanMagic, rank, ranks, chunks, 1, 1, scratch, slots, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} {}

    // Its connections are of one channel.
    void block(u32 channel = 0) {
        blocks_.push_back({u32(steps_.size()), 0});
        channel_ = channel;
    }

    void step(std::vector<Operand> sources, std::vector<Operand> destinations, std::vector<WaitRecord> waits = {},
              u32 last = 0) {
        ++blocks_.back().steps;
        steps_.push_back({1, u32(operands_.size()), u32(sources.size()), u32(destinations.size()), u32(waits_.size()),
                          u32(waits.size()), last, 0});
        for (const Operand& operand : sources) add(operand, false);
        for (const Operand& operand : destinations) add(operand, true);
        waits_.insert(waits_.end(), waits.begin(), waits.end());
    }

    // No message takes a slot.
    void without_slots() { header_.widest = 0; }

    // They wait for each other before and after alone.
    void two_rounds() { header_.two_rounds = 1; }

    // Messages to ranks of other nodes are direct, or batched.
    void between(std::vector<u32> nodes, Storage storage) {
        nodes_ = std::move(nodes);
        between_ = storage;
    }

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
            connections_.push_back({readers[reader], channel_, 1, kSlots, 0, 0, 1, reader, 0, 0});
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
        const u32 peer = there ? operand.peer : operand.chunk;
        const bool direct = !nodes_.empty() && nodes_[peer] != nodes_[header_.rank];
        const u32 storage = direct ? between_ : !lent ? kSlots : (there == (sends != 0)) ? kPushed : kPulled;
        const u32 channel = channel_ + (direct ? 0 : 100 * storage);
        u32 number = 0;
        while (number < connections_.size() &&
               (connections_[number].peer != peer || connections_[number].channel != channel ||
                connections_[number].sends != sends))
            ++number;
        if (number == connections_.size())
            connections_.push_back({peer, channel, sends, storage, lent ? 0u : 1u, 0, 0, 0, 0, 0});
        operands_.push_back({operand.place, number, 0, there ? operand.chunk : 0, there});
    }

    template <class Record> static void append(std::vector<u32>& words, const Record* records, size_t count) {
        const size_t before = words.size();
        words.resize(before + count * sizeof(Record) / sizeof(u32));
        if (count != 0) std::memcpy(words.data() + before, records, count * sizeof(Record));
    }

    PlanHeader header_;
    std::vector<u32> nodes_;
    Storage between_ = kDirect;
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
inline void ring(Writer& plan, u32 rank, u32 ranks, bool fused, u32 from) {
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

inline std::vector<u32> ring(u32 rank, u32 ranks, u32 slots, bool fused) {
    Writer plan(rank, ranks, ranks, 0, slots);
    plan.block();
    ring(plan, rank, ranks, fused, 0);
    return plan.words();
}

// Everyone sends its buffer to everyone and adds up what it gets: in one round as long as the buffer is small, inlined
// where it is tiny, and over slots otherwise. The result lies in the input.
inline std::vector<u32> exchanged(u32 rank, u32 ranks) {
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

// Rank r adds up slice r of all inputs, in place, and stores it to all results.
inline std::vector<u32> direct(u32 rank, u32 ranks, bool inplace, bool two_rounds) {
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

// Each rank hands on what rank 0 has to the next one; messages between nodes are direct.
inline std::vector<u32> chain(u32 rank, const std::vector<u32>& nodes, Storage storage = kDirect) {
    const u32 ranks = u32(nodes.size());
    Writer writer(rank, ranks, 1, 0, 2);
    writer.between(nodes, storage);
    writer.block();
    std::vector<Operand> all;
    if (rank + 1 < ranks) all.push_back({kSend, rank + 1});
    if (rank != 0) all.push_back({kOutput, 0});
    writer.step({rank == 0 ? Operand{kInput, 0} : Operand{kReceive, rank - 1}}, all);
    return writer.words();
}

// Rank r sends chunk s of its input to rank s, as chunk r of its output; messages between nodes are batched. Or, with
// one thread block for each rank, which sends to it and receives from it, direct.
inline std::vector<u32> transposed(u32 rank, const std::vector<u32>& nodes, bool batched) {
    const u32 ranks = u32(nodes.size());
    Writer writer(rank, ranks, ranks, 0, 1);
    writer.between(nodes, batched ? kBatched : kDirect);
    writer.block();
    writer.step({{kInput, rank}}, {{kOutput, rank}});
    for (u32 r = 0; r < ranks; ++r) {
        if (r == rank) continue;
        writer.block();
        writer.step({{kInput, r}}, {{kSend, r}});
        if (batched) writer.block();
        writer.step({{kReceive, r}}, {{kOutput, r}});
    }
    return writer.words();
}

// Two thread blocks of one rank: the second waits for the first.
inline std::vector<u32> one_after_the_other() {
    Writer writer(0, 1, 1, 1, 1);
    writer.block();
    writer.step({{kInput, 0}}, {{kScratch, 0}});
    writer.block();
    writer.step({{kScratch, 0}}, {{kOutput, 0}}, {{0, 0}});
    return writer.words();
}

}  // namespace hocket::test
