// The paths that the messages of a call can take. Each opens the ends of a plan's connections before the plan runs, and
// knows what has to be waited for before the call may end.
#pragma once

#include <algorithm>
#include <bit>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "protocol/control_plane.h"
#include "runtime/plan.h"

namespace hocket {

// Messages travel with the call header: inline, in its line, or in the eager area of their sender. They are stored
// before the sender enters the call, and lie there for two calls: so nobody waits for anything but to enter. Long ones
// rotate through more areas than two, for the reason that messages rotate through slots (policy/select.h: settle).
class EagerPath {
  public:
    // The tunables outlive it.
    EagerPath(const ControlPlane& control, Memory& memory, const Tunables& tunables)
        : control_(control),
          memory_(memory),
          tunables_(tunables),
          area_bytes_(eager_area_bytes(control.size(), control.waiting().others != nullptr)),
          rotated_areas_(
              std::bit_floor(std::min(tunables.rotated_bytes, kMostRotated / control.size()) / area_bytes_)) {}
    // Sees to memory for areas that messages rotate through. Returns 0 or an errno.
    int reserve(const Candidate& candidate);

    // Prefetches the line that an inline message will be in, if the next call of the plan is like its latest: others
    // have it.
    void prefetch_line(const Plan& plan) const {
        if (plan.latest.shape.tiny())
            __builtin_prefetch(&control_.blocks()[control_.rank()].headers[(control_.call() + 1) % 2], 1);
    }
    // Where the messages of the next call will lie that have no room in that line, if it is like this one: others have
    // those of the call before there.
    std::span<const char> next_messages(const Candidate& candidate) const {
        if (!candidate.eager() || candidate.tiny()) return {};
        const u64 bytes = sent_bytes(candidate);
        return {area(control_.rank(), control_.call() + 1, bytes), bytes};
    }
    // Messages between two ranks of a node that take a line or two beside that one. Of more lines the reader would
    // prefetch the first while the sender still stores the last.
    bool is_brief(const Candidate& candidate) const {
        return candidate.eager() && !candidate.tiny() && control_.size() == 2 &&
               sent_bytes(candidate) <= tunables_.reader_prefetch_bytes && control_.waiting().others == nullptr;
    }
    // Prefetches them before each look for their header, so that they come with it and not after it: looks once, and
    // again as often as a rank spins.
    void await_brief(const Candidate& candidate) const;
    void open(const Candidate& candidate, u64 call) const;
    // What this rank has stored in its area.
    static u64 bytes(const Candidate& candidate);

  private:
    bool rotates(u64 bytes) const { return rotated_areas_ > 2 && bytes >= tunables_.rotated_slot_bytes; }
    // Grows with the calls that were made, in powers of two: so calls in succession have different areas also where it
    // does, and few calls touch little memory for the first time.
    u64 areas_in_use(u64 call) const { return std::clamp<u64>(std::bit_floor(call / kCallsAnArea), 2, rotated_areas_); }
    char* area(u32 rank, u64 call, u64 bytes) const {
        if (rotates(bytes)) return rotated_ + (rank * rotated_areas_ + (call & (areas_in_use(call) - 1))) * area_bytes_;
        return eager_area(control_.blocks(), control_.size(), area_bytes_, rank, call);
    }
    static u64 sent_bytes(const Candidate& candidate) {  // of the rank that sends most
        return candidate.plan->header().eager * candidate.geometry.tile;
    }

    const ControlPlane& control_;
    Memory& memory_;
    const Tunables& tunables_;
    const u64 area_bytes_;
    const u64 rotated_areas_;  // of a rank
    char* rotated_ = nullptr;
};

// Messages go through the slots of a queue for each connection, which is empty before a call and after it. Sender and
// receiver wait for each other slot by slot, while the plan runs; nothing is left to wait for.
class FifoPath {
  public:
    // The tunables outlive it.
    FifoPath(Memory& memory, Network* network, const Tunables& tunables)
        : memory_(memory),
          network_(network),
          tunables_(tunables) {}

    // Sees to memory for the slots. Returns 0 or an errno.
    int reserve(const Candidate& candidate) const;
    // `buffers`: the three of the call.
    void open(const Candidate& candidate, const Buffer* buffers) const;
    // Waits until what this rank has sent to other nodes has left it.
    Outcome finish(ControlPlane& control) const;
    // After a call. Returns whether the network may still access what it worked on, where it failed.
    bool close() const { return network_ != nullptr && network_->close(); }
    // Closes also where something is thrown: the network knows where the call keeps its buffers.
    struct Closing {
        const FifoPath& path;
        ~Closing() { path.close(); }
    };

  private:
    bool is_remote(const ConnectionRecord& record) const {
        return network_ != nullptr && network_->is_remote(record.peer);
    }

    Memory& memory_;
    Network* const network_;  // null where all ranks share memory
    const Tunables& tunables_;
};

// Messages lie in the buffers of one of their two ranks, and the other reads or writes them there: in an arena, which
// it has mapped, or in private memory, by cross-memory attach. Who has lent a buffer waits until nobody uses it.
class ZeroCopyPath {
  public:
    ZeroCopyPath(ControlPlane& control, Memory& memory, const FifoPath& fifo, CmaUse cma_use, u32 threads)
        : control_(control),
          memory_(memory),
          fifo_(fifo),
          cma_use_(cma_use) {
        for (u32 t = 0; t < threads && cma_use != CmaUse::kNever; ++t) copies_.emplace_back(memory);
    }

    // By rank: the buffers of others that the latest call uses.
    const PeerBuffers* peers() const { return peers_.get(); }

    // What this rank tells others of its buffers: those of all candidates are the same.
    void describe(const Candidates& candidates, BufferDescription& found) const;
    // Returns 0, or an errno where the buffers of others cannot be mapped.
    int open(const Candidate& candidate, const Buffer* buffers);
    // Waits until the others are done with this rank's buffers.
    Outcome finish(const Candidate& candidate, Execution<Cpu, End>& running);
    // How a call fails whose buffers others have been told of. After a fault that they may not know of, they may go on
    // with the call, and access what lies there.
    Outcome withdraw(Outcome outcome, const BufferDescription& told) const;

    // By cross-memory attach: whether others can access this rank's buffers, if its process is open to them.
    bool reachable(Plan& plan, const Candidate& offered) const;
    bool is_accessible() const { return memory_.is_accessible(); }
    // Whether those that others access are known to lie in huge pages; after `reachable`, which notes them.
    bool in_huge_pages(Plan& plan, const Candidate& offered) const;
    // Since when this rank knows where private memory lies that it is to access; none where there is nothing to access.
    std::optional<u64> attached_since(const Plan& plan) const;
    // The copies of a thread in the latest call.
    CmaCopies* copies(u32 thread) { return &copies_[thread]; }
    // Has the copies of a thread fail if a rank has ended whose memory they access. Looks now and then: `looked` when
    // it did.
    void watch(const Plan& plan, u32 thread, u64& looked);
    // How a call fails whose copies have.
    Outcome failure(const CmaCopies& copies) const;

  private:
    bool is_private(const char* at, const Shape& shape) const {
        return at != nullptr && shape.geometry.unit != 0 && memory_.place(at) == kNowhere;
    }
    bool attaches(const ConnectionRecord& record) const {
        return record.storage != kSlots && !lies_here(record) && control_.said(record.peer).buffers.is_private;
    }
    int map_peers(const Plan& plan);
    Outcome await_partners(const Plan& plan, const Execution<Cpu, End>& running);

    ControlPlane& control_;
    Memory& memory_;
    const FifoPath& fifo_;
    const CmaUse cma_use_;
    std::vector<CmaCopies> copies_;  // by thread
    std::unique_ptr<PeerBuffers[]> peers_;
};

}  // namespace hocket
