// The control plane: how the ranks of a communicator enter calls, notice faults and wait for each other.
//
// It owns the number of the call, the exchange of headers and the state of this rank. It knows nothing of plans, paths
// and buffers: what ranks say of those goes through it as it is.
#pragma once

#include <atomic>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/interpreter.h"
#include "device/atomics.h"
#include "device/clock.h"
#include "protocol/header.h"
#include "protocol/nodes.h"

namespace hocket {

enum class Fault : u32 {
    kNone,
    kMismatch,  // `rank` called something else than the lowest rank; nothing has been touched
    kRefused,   // `rank` says, in `text`, that its arguments are wrong; nothing has been touched
    kDeclined,  // `rank` would rather not make the call, for the reason in `text`; nothing has been touched
    kMemory,    // this rank could not map slots: `text`; nothing has been touched
    kPeer,      // `rank` failed or is gone; from here on the communicator is dead
    kTimeout,
    kInterrupted,  // a signal handler of this rank raised
    kDead,         // it was dead before, for the reason in `rank` and `text`
    kBusy,         // another thread is in a call; this one was not begun
};

// What else there is to say of a call that has failed.
struct Failure {
    std::string text;
    std::optional<Stall> stall;  // where the execution stood
    double waited = 0;
    std::vector<CallHeader> said;  // with kMismatch, by every rank
};

// How a call has ended. Small, as a short call hands it through many functions.
struct Outcome {
    Outcome() = default;
    Outcome(Fault fault, u32 rank, std::string text = {}) : fault(fault), rank(rank) {
        if (!text.empty()) more().text = std::move(text);
    }

    const Failure& why() const {
        static const Failure nothing;
        return failure_ ? *failure_ : nothing;
    }
    Failure& more() {  // not once this was copied: copies share it
        if (!failure_) failure_ = std::make_shared<Failure>();
        return *failure_;
    }

    Fault fault = Fault::kNone;
    u32 rank = 0;
    Variant variant = kBuffered;  // what the call ran
    bool exposed = false;         // others, or a network, may still access this rank's buffers, which lie in no arena

  private:
    std::shared_ptr<Failure> failure_;  // null for nothing
};

// How a rank waits. `timeout`: seconds without progress after which a call fails. `interrupted` is called now and then
// while the caller's thread waits: whether to give up. `patient` is called when a thread has spun in vain, before it
// yields or sleeps, `progress` where it is the caller's. The rest are tuned (policy/tunables.def).
struct WaitPolicy {
    Patience patience;
    double timeout;
    bool (*interrupted)() = nullptr;
    void (*patient)() = nullptr;
    Progressor progress{};
    u64 visits_between_looks = 0, recheck_ticks = 0, progress_nap_nanoseconds = 0;
    OtherNodes* others = nullptr;  // null where all ranks share memory
};

// What a rank says when it enters a call. Whoever gives the same text in every call is its author. `timeout` it keeps
// to itself: that of this call, 0 for WaitPolicy's. `entered`: when, in ticks, if it times the call; else 0.
struct Statement {
    const Terms& terms;
    const std::string& text;
    u64 author;
    const BufferDescription* buffers = nullptr;
    double timeout = 0;
    u64 eager_bytes = 0;  // of messages that lie behind the header, for other nodes
    u64 entered = 0;
};

class ControlPlane {
  public:
    static constexpr u64 kNobody = 0, kBarrier = 1, kFirstPlan = 2;  // authors of texts; others have no number

    // `lifelines[r]` reports end of file once rank r is gone. The own one, if it is not -1, is the other end, and is
    // shut down when this rank leaves. Empty when ranks are threads of one process. `calls`: so many were before.
    ControlPlane(u32 rank, u32 size, RankBlock* blocks, std::vector<int> lifelines, WaitPolicy waiting, u64 calls);

    u32 rank() const { return rank_; }
    u32 size() const { return size_; }
    u64 call() const { return call_; }  // the number of the latest call
    const Clock& clock() const { return clock_; }
    const WaitPolicy& waiting() const { return waiting_; }
    RankBlock* blocks() const { return blocks_; }
    u64 new_author() { return authors_++; }

    // Says what this rank calls and waits until all have said it. Nobody stores to an output or a peer before.
    // `meanwhile()` is called in between, while others are on their way.
    template <class Meanwhile> Outcome enter(const Statement& mine, Meanwhile meanwhile) {
        if (dead()) return is_dead();
        post(mine);
        meanwhile();
        return await_all();
    }
    // The two parts of it, and whether the second would not wait.
    void post(const Statement& mine);
    Outcome await_all();
    bool all_entered() const {
        u32 r = 0;
        while (r < size_ && observe_header(&said(r).call) == call_) ++r;  // pairs with publish_header in `post`
        return r == size_;
    }
    // When the last rank entered the latest call, in ticks, where all have timed it; else now.
    u64 entered_at() const;
    // Enters a call in which nothing moves. `timeout`: that of a Statement.
    Outcome barrier(double timeout = 0);
    // Enters a call in which nothing moves but a word of each rank, afterwards in `said`; cut at what a header has room
    // for.
    Outcome exchange(const std::string& word, u64 digest);
    // Enters a call only to say that this rank cannot take part in it, or with kDeclined that no rank should.
    Outcome refuse(const std::string& why, CallFlag how = kRefused);
    // What a rank said when it entered the latest call.
    const CallHeader& said(u32 rank) const { return blocks_[rank].headers[call_ % 2]; }

    // Steps until done: spins, then yields, then sleeps; looks for faults after each sleep and now and then.
    // `waits_for(peer, outcome)` returns a rank that this one waits for (`peer` itself, if that is given), or null, and
    // notes where. What it returns is good until it is called again or the outcome changes.
    template <class Step, class Blame> Outcome drive(const Step& step, const Blame& waits_for);

    // How a call ends that a signal interrupts while no thread that may look for one is in `drive`; kNone if none does.
    Outcome interrupted();

    // That this rank has done its part of the latest call, and whether another has. Whoever may wait for it is woken.
    void say_done() { publish_done(&blocks_[rank_].done, call_); }  // pairs with observe_done in `is_done`
    bool is_done(u32 rank) const {
        return (observe_done(&blocks_[rank].done) - call_) >> 63 == 0;  // pairs with publish_done; calls may wrap
    }
    void wake(u32 rank) { ring(blocks_[rank].bell); }

    // Ends the communicator: with a reason every other rank raises at once, without one only a rank that still needs
    // this one. Both, like `dead` and `ended`, may be called while another thread of this rank is in a call, which that
    // ends too: `in_call`.
    void leave(bool in_call = false) {
        const u64 latest = __atomic_load_n(&call_, __ATOMIC_RELAXED);  // pairs with `post`
        mark(kLeft, rank_, in_call ? latest : latest + 1, "closed");
    }
    void fail(u32 culprit, const std::string& why) { mark(kAborted, culprit, 0, why); }
    bool dead() const { return observe_state(&blocks_[rank_].state) != kRunning; }  // pairs with `mark`
    // With which a call fails that is made after the end.
    Outcome is_dead() const { return {Fault::kDead, u32(blocks_[rank_].culprit), blocks_[rank_].text}; }
    // Why a rank will make no more calls, and whose fault that is; kNone if it may. Asks nobody.
    Outcome ended(u32 rank) const;
    // Whether another rank's failure ends the call that this one is in.
    bool failed(u32 rank) const;
    // Whether the process of a rank has ended.
    bool is_gone(u32 rank) const;
    // Fails the latest call, and says so to all: for a fault that this rank has met, or that of a rank that failed.
    Outcome give_up(Outcome outcome);
    Outcome give_up_for(u32 failed) {
        return give_up({Fault::kPeer, u32(blocks_[failed].culprit), blocks_[failed].text});
    }

  private:
    bool alike() const;
    Outcome agree() const;
    template <class Step, class Blame> Outcome drive_alone(const Step& step, const Blame& waits_for);
    template <class Step, class Blame> Outcome drive_network(const Step& step, const Blame& waits_for);
    bool spins(u32& idle, u64& yielding) const;
    void has_spun_in_vain() const;
    long nap_nanoseconds() const;
    template <class Step, class Blame>
    std::optional<Outcome> look_around(double& since, Progress progress, const Step& step, const Blame& waits_for);
    template <class Blame> std::optional<Outcome> overdue(double& since, Outcome outcome, const Blame& waits_for);
    Outcome inspect(std::vector<u32>& gone);
    Outcome interruption() const;
    bool waits(u32 rank, double now) const;
    u32 straggler(u32 peer, double now) const;
    // Whether the end of a rank counts in this call. The number of calls may wrap.
    bool ends(const RankBlock& other) const { return (call_ - other.since) >> 63 == 0; }
    void mark(State state, u32 culprit, u64 since, const std::string& why);

    const u32 rank_, size_;
    RankBlock* const blocks_;
    const std::vector<int> lifelines_;
    const WaitPolicy waiting_;
    const Clock clock_;
    u64 call_;
    double timeout_ = 0;  // of the latest call
    u64 authors_ = kFirstPlan;
    u64 written_[2] = {kNobody, kNobody};  // the authors of the texts in this rank's lines
    std::atomic_flag marked_;
};

// A line is used by every other call. Storing the line of call c + 2 over that of call c is safe without a closing
// barrier: this rank has then seen all lines of call c + 1, and a rank posts that line only after it has read all lines
// of call c (below) and finished call c. The latter also means that all connections are empty when a call begins to use
// them, whatever layout of slots the call before had. What a rank sends eagerly is stored before, for the same reason,
// but not by a rank that is dead: it may never have seen the lines of call c + 1.
inline Outcome ControlPlane::await_all() {
    const u64 call = call_;
    u32 next = 0, late = 0;
    Outcome entered = drive(
        [&] {
            const u32 before = next;
            // Pairs with publish_header in `post`.
            while (next < size_ && observe_header(&blocks_[next].headers[call % 2].call) == call) ++next;
            return next == size_ ? Progress::kDone : next != before ? Progress::kMoved : Progress::kStalled;
        },
        [&](const u32* peer, Outcome&) -> const u32* {
            OtherNodes* const others = waiting_.others;
            late = peer ? *peer : others != nullptr ? others->holds_up(next) : next;
            if (!peer || (others != nullptr && others->awaits(late, call))) return &late;
            return observe_header(&blocks_[late].headers[call % 2].call) != call ? &late : nullptr;  // pairs as above
        });
    if (entered.fault == Fault::kNone && !alike()) {
        entered = agree();
        if (entered.fault == Fault::kPeer) entered = give_up(std::move(entered));
    }
    return entered;
}

template <class Step, class Blame> Outcome ControlPlane::drive(const Step& step, const Blame& waits_for) {
    if (waiting_.others != nullptr) [[unlikely]]
        return drive_network(step, waits_for);
    return drive_alone(step, waits_for);
}

// Apart, so that ranks which all share memory pay no more than the test.
template <class Step, class Blame>
[[gnu::noinline]] Outcome ControlPlane::drive_network(const Step& step, const Blame& waits_for) {
    const auto look = [&] {
        waiting_.others->progress();
        return step();
    };
    return drive_alone(look, waits_for);
}

template <class Step, class Blame> Outcome ControlPlane::drive_alone(const Step& step, const Blame& waits_for) {
    Bell& bell = blocks_[rank_].bell;
    const u64 most = waiting_.visits_between_looks;
    u32 idle = 0;
    u64 yielding = 0;  // since when, in ticks
    double since = 0;  // when it was first found waiting; 0: it was not
    for (u64 visits = 1;; ++visits) {
        Progress progress = step();
        if (progress == Progress::kStalled && visits < most) {
            if (spins(idle, yielding)) continue;
            const u32 seen = lie_down(bell);
            progress = step();  // the second one, after the bell was raised (waiting.h)
            if (progress == Progress::kStalled) {
                nap(bell, seen, nap_nanoseconds());
                visits = most;
            }
        }
        if (progress == Progress::kDone) return {};
        if (progress == Progress::kMoved) {
            idle = 0;
            since = 0;
        }
        if (visits < most) continue;
        visits = 0;
        if (std::optional<Outcome> ended = look_around(since, progress, step, waits_for)) return std::move(*ended);
    }
}

// Where other processes keep the cores, a yield may take as long as a nap, and many would hide a fault for seconds.
inline bool ControlPlane::spins(u32& idle, u64& yielding) const {
    const Patience patience = waiting_.patience;
    if (idle >= patience.spins) has_spun_in_vain();
    if (idle >= patience.spins + patience.yields) return false;
    if (idle++ < patience.spins) {
        relax();
        return true;
    }
    if (idle == patience.spins + 1) yielding = clock_.ticks();
    ::sched_yield();
    if (clock_.ticks() - yielding > waiting_.recheck_ticks) idle = patience.spins + patience.yields;
    return true;
}

// Looks for faults. Returns how the wait has ended, if it has.
template <class Step, class Blame>
[[gnu::noinline]] std::optional<Outcome> ControlPlane::look_around(double& since, Progress progress, const Step& step,
                                                                   const Blame& waits_for) {
    std::vector<u32> gone;
    Outcome outcome = inspect(gone);
    if (outcome.fault != Fault::kNone) {
        if (!waits_for(&outcome.rank, outcome)) waits_for(nullptr, outcome);
        return give_up(std::move(outcome));
    }
    // Those that are gone may have done their part before: what counts is whether this rank still needs one.
    if (!gone.empty()) progress = step();
    if (progress == Progress::kDone) return Outcome{};
    if (progress == Progress::kMoved) return std::nullopt;
    for (const u32 peer : gone) {
        const u64 state = observe_state(&blocks_[peer].state);  // pairs with publish_state in `mark`
        const bool remote = waiting_.others != nullptr && waiting_.others->is_remote(peer);
        // What this rank waits for since then may still come from another node.
        const bool lingers = remote && (since == 0 || seconds() - since < kLingering);
        if (!waits_for(&peer, outcome) || (state != kLeft && lingers)) continue;
        outcome.fault = Fault::kPeer;
        outcome.rank = peer;
        outcome.more().text = state == kLeft ? "closed its communicator" : "has ended";
        return give_up(std::move(outcome));
    }
    return overdue(since, std::move(outcome), waits_for);
}

// Notes whom this rank waits for, of several one that does not wait itself, where a wait may take too long. Returns how
// it has ended, if it has.
template <class Blame>
std::optional<Outcome> ControlPlane::overdue(double& since, Outcome outcome, const Blame& waits_for) {
    const double now = seconds();
    if (since == 0) since = now;
    const u32* const awaited = waits_for(nullptr, outcome);
    if (awaited == nullptr) return std::nullopt;  // but for other threads of this rank
    outcome.rank = *awaited;
    const bool ends = std::isfinite(timeout_);                                           // else nobody asks for whom
    for (u32 r = 0; ends && r < size_ && waits(straggler(outcome.rank, now), now); ++r)  // they wait in a circle
        if (!waits(r, now) && waits_for(&r, outcome)) outcome.rank = r;
    __atomic_store_n(&blocks_[rank_].peer, outcome.rank, __ATOMIC_RELAXED);  // hints: see RankBlock
    __atomic_store_n(&blocks_[rank_].looked, u64(now * 1e9), __ATOMIC_RELAXED);
    const bool late = now - since > timeout_;
    OtherNodes* const others = waiting_.others;
    if (others != nullptr) others->waits(outcome.rank, late);
    if (!late) return std::nullopt;
    outcome.rank = straggler(outcome.rank, now);
    if (others != nullptr && others->is_remote(outcome.rank) && now - since <= timeout_ + kGrace) return std::nullopt;
    outcome.fault = Fault::kTimeout;
    outcome.more().waited = now - since;
    return give_up(std::move(outcome));
}

}  // namespace hocket
