// The ranks of other nodes, as the control plane needs them. A node is the ranks that share memory.
//
// The control region of a node has a block for every rank of the communicator. Those of other nodes' ranks are copies:
// a rank of this node stores there what their ranks have said, as they would have. So whoever reads a block need not
// know whose it is.
#pragma once

#include "core/plan.h"

namespace hocket {

constexpr double kGrace = 0.2;      // seconds after its timeout for which a rank hears whom the others wait for
constexpr double kLingering = 0.5;  // for which what a process has sent may come after the word of its end

class OtherNodes {
  public:
    virtual ~OtherNodes() = default;
    // Gets on with all that is on its way. Called by the thread that is in a call, whenever that looks for progress.
    virtual void progress() = 0;
    // This rank has posted its header of a call.
    virtual void posted(u64 call) = 0;
    // Whether this rank still waits in that call for what another of its node is to store.
    virtual bool awaits(u32 rank, u64 call) const = 0;
    // Whose fault it is, as far as this rank knows, that it has no header of a rank. What comes from other nodes comes
    // by the leader of its own, and to that from, or not before it has sent to, a leader of another.
    virtual u32 holds_up(u32 rank) const = 0;
    virtual bool is_remote(u32 rank) const = 0;
    // This rank waits for another; `late`: for longer than its timeout, so it asks all whom they wait for. Those that
    // are asked tell all. Called by the thread in the call, in each look.
    virtual void waits(u32 rank, bool late) = 0;
    // The state of this rank has changed, for good. Called by any thread; `progress` tells the others.
    virtual void ended() = 0;
    // The process of a rank has ended, as this rank is the first of its node to see. Called by the thread in the call.
    virtual void gone(u32 rank) = 0;
};

}  // namespace hocket
