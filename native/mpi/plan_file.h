// Plans of collectives, made beforehand by hocket/plan_files.py: no program needs Python to run them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "protocol/waiting.h"

namespace hocket::mpi {

// Of a file, but for the suffix: _LONGEST_NAME in hocket/plan_files.py. Longer placements have a hash.
constexpr u64 kLongestName = 100;
constexpr u64 kPlanFileFormat = 0x686b6d05;  // FORMAT in hocket/plan_files.py

// The collectives of a file, in its order. The root of those that have one is rank 0.
enum class Program : u32 { kAllReduce, kReduce, kBroadcast, kAllGather, kReduceScatter, kGather, kScatter, kAllToAll };
constexpr const char* kProgramNames[] = {"all_reduce",     "reduce", "broadcast", "all_gather",
                                         "reduce_scatter", "gather", "scatter",   "all_to_all"};

constexpr u32 kPrograms = u32(std::size(kProgramNames));

// Which memory is a buffer of a plan, or is copied: none, the input of the call, its output, or scratch.
enum class Source : u32 { kNothing, kX, kOut, kScratch };

// Which memory is which buffer (runtime/buffers.py: Bound). `initial` is copied to the first of `input` and `output`
// before, with `to_own` to the rank's own unit there; with `taken`, `result` is copied from there at the end.
struct Binding {
    Source input, output, initial, result;
    bool to_own, taken, apart;
    bool copies() const { return initial != Source::kNothing || taken || apart; }
};

// What one rank does in a plan. Two bindings: for buffers that lie apart, and in place. `apart`: what an in-place plan
// does where they lie apart; empty where that makes no difference.
struct Part {
    Binding bindings[2];
    std::vector<u32> words, apart;
};

// What calls run: of a program, by contract (1: sums in the order of ranks), whether there are more ranks than cores,
// whether units have lengths of their own, and the bytes of the larger buffer of a rank with most.
struct Rule {
    Program program;
    u32 contract;
    bool crowded, uneven;
    u64 least, most;
    u32 plan, tile, instead[2];  // plans in place of it, in place and apart, by a number that is one more
};

class PlanFile {
  public:
    // That of ranks on these nodes, which are numbered in the order of their lowest ranks: from the first directory
    // that has one for this version; null where none has.
    static std::shared_ptr<const PlanFile> find(const std::vector<u32>& nodes);
    // How many ranks, where they are on one node; else how many on each, "2+2", or the node of each, "0,1,0".
    static std::string placement(const std::vector<u32>& nodes);

    u32 plans() const { return u32(digests_.size()); }
    // A hash of all of it: ranks with the same have the same plans.
    u64 hash() const { return hash_; }
    // How a rank waits, with a core of its own or without.
    Patience patience(bool crowded) const { return patience_[crowded]; }
    u64 digest(u32 plan) const { return digests_[plan]; }
    // Null where the contract cannot be kept.
    const Rule* rule(Program program, u32 contract, bool crowded, bool uneven, u64 size) const;
    // Throws std::runtime_error for a file that is damaged.
    Part part(u32 plan, u32 rank) const;

  private:
    PlanFile() = default;
    static std::shared_ptr<const PlanFile> read(const std::string& path, const std::vector<u32>& nodes);

    u32 ranks_ = 0;
    u64 hash_ = 0;
    Patience patience_[2]{};
    std::vector<unsigned char> bytes_;
    std::vector<Rule> rules_;        // by program
    u32 first_[kPrograms + 1] = {};  // of each program's
    std::vector<u64> digests_;
    std::vector<u64> places_;  // of the part of each plan and rank, and of the end
};

}  // namespace hocket::mpi
