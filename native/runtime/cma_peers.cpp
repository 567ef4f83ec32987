#include "runtime/cma_peers.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace hocket {

CmaPeers::CmaPeers(ControlPlane& control, Memory& memory, u32 threads) : control_(control), memory_(memory) {
    for (u32 t = 0; t < threads; ++t) copies_.emplace_back(memory_);
}

bool CmaPeers::allowed(Plan& plan, const Candidate& offered) const {
    if (!memory_.open()) return false;
    const PlanHeader& h = offered.plan->header();
    const std::span<const char> buffers[] = {
        {offered.input, offered.input ? h.input_blocks * offered.geometry.unit : 0},
        {offered.output, offered.output ? h.output_blocks * offered.geometry.unit : 0}};
    for (const u32 place : {kInput, kOutput}) {
        const std::span<const char> buffer = buffers[place];
        std::span<const char>& known = plan.latest.reachable[place];
        if (buffer.empty() || (buffer.data() == known.data() && buffer.size() == known.size())) continue;
        if (!memory_.reachable(buffer.data(), buffer.size())) return false;
        known = buffer;
    }
    return true;
}

std::optional<u64> CmaPeers::since(const Plan& plan) const {
    std::optional<u64> since;
    for (const ConnectionRecord& record : plan.connections()) {
        if (!accesses(record)) continue;
        const u64 told = control_.said(record.peer).buffers.since;
        since = since ? std::min(*since, told) : told;
    }
    return since;
}

// The kernel knows a process by a number, which another may get once that has ended. It takes as many new processes as
// there are numbers: who was there a moment ago has its number still.
void CmaPeers::watch(const Plan& plan, u32 thread, u64& looked) {
    if (control_.clock().ticks() - looked <= control_.waiting().recheck_ticks) return;
    looked = control_.clock().ticks();
    for (const ConnectionRecord& record : plan.connections()) {
        if (!accesses(record) || !control_.is_gone(record.peer)) continue;
        copies_[thread].lose(record.peer);
        return;
    }
}

// Since a rank has ended, or its array is gone, or this rank may not access it any more.
Outcome CmaPeers::failure(const CmaCopies& copies) const {
    const u32 owner = copies.rank();
    if (control_.failed(owner)) return control_.give_up_for(owner);
    const std::string why = std::strerror(copies.error());
    if (copies.error() == ESRCH) return control_.give_up({Fault::kPeer, owner, "has ended"});
    if (copies.error() == EFAULT)
        return control_.give_up({Fault::kPeer, owner, "has an array that cannot be reached: " + why});
    const std::string whose = "may not access the memory of rank " + std::to_string(owner) + " any more: ";
    return control_.give_up({Fault::kPeer, control_.rank(), whose + why + " (HOCKET_REACH=never does without)"});
}

}  // namespace hocket
