// The private memory of other ranks, in calls with zero copies by cross-memory attach.
#pragma once

#include <optional>
#include <vector>

#include "protocol/control_plane.h"
#include "runtime/plan.h"

namespace hocket {

class CmaPeers {
  public:
    // `threads` 0: never used.
    CmaPeers(ControlPlane& control, Memory& memory, u32 threads);

    // Whether others can access this rank's buffers.
    bool allowed(Plan& plan, const Candidate& offered) const;
    // Since when this rank knows where private memory lies that it is to access; none where there is nothing to access.
    std::optional<u64> since(const Plan& plan) const;
    // The copies of a thread in the latest call.
    CmaCopies* copies(u32 thread) { return &copies_[thread]; }
    // Has the copies of a thread fail if a rank has ended whose memory they access. Looks now and then: `looked` when
    // it did.
    void watch(const Plan& plan, u32 thread, u64& looked);
    // How a call fails whose copies have.
    Outcome failure(const CmaCopies& copies) const;

  private:
    bool accesses(const ConnectionRecord& record) const {
        return record.storage != kSlots && !lies_here(record) && control_.said(record.peer).buffers.is_private;
    }

    ControlPlane& control_;
    Memory& memory_;
    std::vector<CmaCopies> copies_;  // by thread
};

}  // namespace hocket
