#include "protocol/control_plane.h"

#include <poll.h>
#include <sys/socket.h>
#include <algorithm>
#include <cstring>

namespace hocket {
namespace {

// Stores a text of UTF-8, or as many of its characters as there is room for.
template <u64 N> void say(char (&text)[N], const std::string& what) {
    u64 length = what.size() < N ? what.size() : N - 1;
    while (length < what.size() && length != 0 && (what[length] & 0xc0) == 0x80) --length;
    std::memcpy(text, what.data(), length);
    text[length] = 0;
}

u64 signature(const Terms& terms) {
    u64 hash = 0;
    const u64 rest = u64(terms.element) << 32 | terms.flags;
    for (const u64 word : {terms.digest, terms.n, terms.tile, terms.counts, u64(terms.type), u64(terms.op), rest})
        hash = mix(hash ^ word);
    return hash;
}

}  // namespace

ControlPlane::ControlPlane(u32 rank, u32 size, RankBlock* blocks, std::vector<int> lifelines, WaitPolicy waiting,
                           u64 calls)
    : rank_(rank),
      size_(size),
      blocks_(blocks),
      lifelines_(std::move(lifelines)),
      waiting_(waiting),
      call_(calls) {
    for (CallHeader& line : blocks_[rank_].headers) line.signature = signature(line.terms);
    blocks_[rank_].done = call_;  // not 0, which may be after the first call where the number wraps
}

Outcome ControlPlane::barrier(double timeout) {
    return enter({{}, "barrier", kBarrier, nullptr, timeout}, [] {});
}

Outcome ControlPlane::exchange(const std::string& word, u64 digest) {
    return enter({{.digest = digest}, word, kNobody}, [] {});
}

Outcome ControlPlane::refuse(const std::string& why, CallFlag how) {
    return enter({{.flags = how}, why, kNobody}, [] {});
}

// What the line holds already is not stored again: the other ranks may have it in their caches.
void ControlPlane::post(const Statement& mine) {
    const u64 call = call_ + 1;
    __atomic_store_n(&call_, call, __ATOMIC_RELAXED);  // pairs with `leave`, on another thread
    timeout_ = mine.timeout != 0 ? mine.timeout : waiting_.timeout;
    CallHeader& line = blocks_[rank_].headers[call % 2];
    if (!(line.terms == mine.terms)) {
        line.terms = mine.terms;
        line.signature = signature(mine.terms);
    }
    if (mine.author == kNobody || mine.author != written_[call % 2]) {
        say(line.text, mine.text);
        written_[call % 2] = mine.author;
    }
    if (mine.buffers != nullptr) line.buffers = *mine.buffers;
    if (mine.entered != 0) line.timed = {call, mine.entered};
    if (waiting_.others != nullptr) [[unlikely]]
        blocks_[rank_].eager[call % 2] = mine.eager_bytes;
    if (touches(call)) __atomic_store_n(&blocks_[rank_].touched, call, __ATOMIC_RELAXED);  // its value nobody uses
    publish_header(&line.call, call);  // pairs with observe_header, on every other rank
    for (u32 r = 0; r < size_; ++r)
        if (r != rank_) ring(blocks_[r].bell);
    if (waiting_.others != nullptr) [[unlikely]]
        waiting_.others->posted(call);
}

u64 ControlPlane::entered_at() const {
    const u64 now = clock_.ticks();
    if (waiting_.others != nullptr) return now;  // other nodes have clocks of their own
    u64 last = 0;
    for (u32 r = 0; r < size_; ++r) {
        const auto& timed = said(r).timed;
        if (timed.call != call_) return now;
        last = std::max(last, timed.ticks);
    }
    return std::min(last, now);
}

// Whether all have said the same, and nobody has failed: most calls need to know no more.
bool ControlPlane::alike() const {
    const CallHeader& mine = said(rank_);
    bool alike = !(mine.terms.flags & kExcuses);
    for (u32 r = 0; r < size_ && alike; ++r) alike = said(r).signature == mine.signature && (r == rank_ || !failed(r));
    return alike;
}

// All ranks read the same lines, so all come to the same conclusion, but for a rank that fails meanwhile. One that
// failed in this call, after it had said its line, is noticed here, or once something from it is missing, or, in two
// rounds, at the end.
Outcome ControlPlane::agree() const {
    for (u32 r = 0; r < size_; ++r)
        if (r != rank_ && failed(r)) return {Fault::kPeer, u32(blocks_[r].culprit), blocks_[r].text};
    for (const auto& [flag, fault] : {std::pair(kRefused, Fault::kRefused), std::pair(kDeclined, Fault::kDeclined)})
        for (u32 r = 0; r < size_; ++r)
            if (said(r).terms.flags & flag) return {fault, r, said(r).text};
    u32 sized = 0;
    while (sized + 1 < size_ && said(sized).terms.flags & kSizeUnknown) ++sized;
    const Terms& first = said(0).terms;
    const Terms& size = said(sized).terms;
    const bool pairwise = first.flags & kPairwise;
    u64 counts = first.counts;
    u32 odd = 0;
    for (u32 r = 1; r < size_ && odd == 0; ++r) {
        const Terms& other = said(r).terms;
        const bool same = other.digest == first.digest && other.op == first.op && other.tile == first.tile &&
                          (other.flags & kUnits) == (first.flags & kUnits) &&
                          (pairwise || other.counts == first.counts);
        const bool same_type = other.type == size.type && other.element == size.element;
        const bool same_size = other.flags & kSizeUnknown || ((pairwise || other.n == size.n) && same_type);
        if (!same || !same_size) odd = r;
        counts += other.counts;
    }
    if (odd == 0 && !(pairwise && counts != 0)) return {};
    Outcome outcome{Fault::kMismatch, odd};  // with `odd` 0, two ranks do not expect the same of each other
    for (u32 every = 0; every < size_; ++every) outcome.more().said.push_back(said(every));
    return outcome;
}

void ControlPlane::has_spun_in_vain() const {
    if (waiting_.patient != nullptr) waiting_.patient();
    if (waiting_.progress.call != nullptr && !worker_thread) waiting_.progress.call(waiting_.progress.context);
}

long ControlPlane::nap_nanoseconds() const {
    if (waiting_.progress.call == nullptr && waiting_.others == nullptr) return kNapNanoseconds;
    return std::min(kNapNanoseconds, long(waiting_.progress_nap_nanoseconds));
}

// Looks for faults: a signal, another rank that says it failed. Collects the ranks that are gone.
Outcome ControlPlane::inspect(std::vector<u32>& gone) {
    if (Outcome found = interruption(); found.fault != Fault::kNone) return found;
    if (dead()) return is_dead();
    for (u32 r = 0; r < size_; ++r) {
        if (r == rank_) continue;
        const bool ended = is_gone(r);
        // Looked at after its lifeline: a rank that says why it ends says it before it ends.
        if (failed(r)) return {Fault::kPeer, u32(blocks_[r].culprit), blocks_[r].text};
        const u64 state = observe_state(&blocks_[r].state);  // pairs with publish_state in `mark`
        if (ended && state == kRunning && waiting_.others != nullptr &&
            __atomic_exchange_n(&blocks_[r].gone, 1, __ATOMIC_RELAXED) == 0)  // a hint to look at, by any rank
            waiting_.others->gone(r);
        if (state == kLeft ? ends(blocks_[r]) : ended) gone.push_back(r);
    }
    return {};
}

// Whether a rank has said lately that it waits.
bool ControlPlane::waits(u32 rank, double now) const {
    return now - 1e-9 * double(__atomic_load_n(&blocks_[rank].looked, __ATOMIC_RELAXED)) <= timeout_ / 2;
}

// Whose fault it is that this rank waits for `peer`: the first of a chain of waiting ranks that does not wait itself;
// `peer` where they wait in a circle.
u32 ControlPlane::straggler(u32 peer, double now) const {
    u32 found = peer;
    for (u32 steps = 0; steps < size_ && found != rank_; ++steps) {
        if (!waits(found, now)) return found;
        found = u32(__atomic_load_n(&blocks_[found].peer, __ATOMIC_RELAXED));
    }
    return peer;
}

Outcome ControlPlane::ended(u32 rank) const {
    const RankBlock& other = blocks_[rank];
    const bool gone = rank != rank_ && is_gone(rank);  // looked at first, as in `inspect`
    const u64 state = observe_state(&other.state);     // pairs with publish_state in `mark`
    if (state == kLeft) return {Fault::kPeer, rank, "closed its communicator"};
    if (state != kRunning) return {Fault::kPeer, u32(other.culprit), other.text};
    if (gone) return {Fault::kPeer, rank, "has ended"};
    return {};
}

bool ControlPlane::failed(u32 rank) const {
    const RankBlock& other = blocks_[rank];
    const u64 state = observe_state(&other.state);  // pairs with publish_state in `mark`
    return state == kAborted || (state == kFailed && ends(other));
}

bool ControlPlane::is_gone(u32 rank) const {
    if (__atomic_load_n(&blocks_[rank].gone, __ATOMIC_RELAXED) != 0) return true;  // alone: it orders nothing
    pollfd line{rank < lifelines_.size() ? lifelines_[rank] : -1, POLLIN, 0};
    return ::poll(&line, 1, 0) > 0;
}

Outcome ControlPlane::interrupted() {
    Outcome found = interruption();
    return found.fault == Fault::kNone ? found : give_up(std::move(found));
}

// Whether a signal ends the call, of which only the thread that called is told.
Outcome ControlPlane::interruption() const {
    const bool found = !worker_thread && waiting_.interrupted != nullptr && waiting_.interrupted();
    return found ? Outcome{Fault::kInterrupted, rank_, "was interrupted"} : Outcome{};
}

// What this rank misses from another, it misses from this call on: whoever is still in an earlier one got there what it
// needs, or will find out by itself. An interruption is to end all, now.
Outcome ControlPlane::give_up(Outcome outcome) {
    const bool missed = outcome.fault == Fault::kPeer || outcome.fault == Fault::kTimeout;
    const std::string why = outcome.fault == Fault::kTimeout ? "was waited for in vain" : outcome.why().text;
    mark(missed ? kFailed : kAborted, missed ? outcome.rank : rank_, call_, why);
    if (waiting_.others != nullptr) waiting_.others->progress();  // which tells them
    return outcome;
}

void ControlPlane::mark(State state, u32 culprit, u64 since, const std::string& why) {
    if (marked_.test_and_set()) return;  // the first reason is the one that counts
    RankBlock& mine = blocks_[rank_];
    mine.culprit = culprit;
    mine.since = since;
    say(mine.text, why);
    publish_state(&mine.state, state);                      // pairs with observe_state, on every rank
    for (u32 r = 0; r < size_; ++r) ring(blocks_[r].bell);  // the own one for the other threads of this rank
    if (waiting_.others != nullptr) waiting_.others->ended();
    if (rank_ < lifelines_.size()) ::shutdown(lifelines_[rank_], SHUT_RDWR);  // for those who wait for it elsewhere
}

}  // namespace hocket
