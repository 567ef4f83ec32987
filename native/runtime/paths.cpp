#include "runtime/paths.h"

#include <cerrno>
#include <cstring>
#include <utility>

namespace hocket {

int EagerPath::reserve(const Candidate& candidate) {
    if (rotated_ != nullptr || !candidate.eager() || !rotates(sent_bytes(candidate))) return 0;
    rotated_ = memory_.rotated(control_.rank(), rotated_areas_ * area_bytes_);
    return rotated_ == nullptr ? errno : 0;
}

void EagerPath::open(const Candidate& candidate, u64 call) const {
    Plan& plan = *candidate.plan;
    const bool is_inline = select(plan.header(), candidate, 0, 0).path == Path::kInlineEager;
    RankBlock* const blocks = control_.blocks();
    const u64 bytes = sent_bytes(candidate);
    End* end = plan.ends().data();
    for (const ConnectionRecord& record : plan.connections()) {
        const u32 sender = record.sends ? control_.rank() : record.peer;
        char* messages = is_inline ? blocks[sender].headers[call % 2].inlined : area(sender, call, bytes);
        *end++ = End::open(messages + record.place * candidate.geometry.tile, record.sends != 0, record.peer);
    }
}

// Apart, so that calls whose messages are inline pay no more than the test.
[[gnu::noinline]] void EagerPath::await_brief(const Candidate& candidate) const {
    const u64 bytes = sent_bytes(candidate);
    const char* const messages = area(1 - control_.rank(), control_.call(), bytes);
    for (u32 look = 0;; ++look) {
        for (u64 at = 0; at < bytes; at += kCacheLine) __builtin_prefetch(messages + at);
        if (look == control_.waiting().patience.spins || control_.all_entered()) return;
        relax();
    }
}

u64 EagerPath::bytes(const Candidate& candidate) {
    if (select(candidate.plan->header(), candidate, 0, 0).path == Path::kInlineEager) return 0;
    u64 messages = 0;
    for (const ConnectionRecord& record : candidate.plan->connections())
        if (record.sends) messages = std::max<u64>(messages, record.place + record.width);
    return messages * candidate.geometry.tile;
}

int FifoPath::reserve(const Candidate& candidate) const {
    const Plan& plan = *candidate.plan;
    const u64 slots = candidate.eager() ? 0 : candidate.slots;
    const u32 connections = candidate.rounds == Rounds::kTwo ? 0 : plan.header().connections;
    for (u32 c = 0; c < connections; ++c) {
        Window* const window = plan.windows()[c];
        const ConnectionRecord& record = plan.connections()[c];
        const u64 bytes = is_direct(record) ? 0 : slots * record.width * candidate.geometry.tile;
        if (window->counters != nullptr && bytes <= window->bytes) continue;
        if (const int failed = is_remote(record) ? network_->reserve(window, bytes) : memory_.reserve(window, bytes))
            return failed;
    }
    return 0;
}

void FifoPath::open(const Candidate& candidate, const Buffer* buffers) const {
    Plan& plan = *candidate.plan;
    for (u32 c = 0; c < plan.header().connections; ++c) {
        const ConnectionRecord& record = plan.connections()[c];
        const Window& window = *plan.windows()[c];
        End& end = plan.ends()[c];
        end = {&window.counters->filled.count,
               &window.counters->freed[record.reader].count,
               window.slots(),
               record.width * candidate.geometry.tile,
               record.storage == kSlots ? candidate.slots : kUnbounded,
               record.peer,
               record.more};
        if (record.multicast != 0) end.begin_after(window.passed);
        else end.begin(record.sends != 0);
        if (is_direct(record))
            network_->open(
                plan.windows()[c], candidate.slots,
                {&plan.lies(c), buffers, &candidate.geometry, tiles_a_message(record, candidate.geometry, tunables_)});
        else if (is_remote(record))
            end.lengths = network_->open(plan.windows()[c], candidate.slots, end.slot_bytes,
                                         plan.messages()[c] * candidate.geometry.tiles);
    }
    for (u32 m = 0; m < plan.header().multicasts; ++m)
        plan.multicasts()[m]->passed += plan.view().multicasts[m].messages * candidate.geometry.tiles;
}

Outcome FifoPath::finish(ControlPlane& control) const {
    u64 left = ~u64(0);
    return control.drive(
        [&] {
            const u64 before = std::exchange(left, network_->outstanding());
            return left == 0 ? Progress::kDone : left != before ? Progress::kMoved : Progress::kStalled;
        },
        [&](const u32* peer, Outcome&) { return network_->awaited(peer); });
}

void ZeroCopyPath::describe(const Candidates& candidates, BufferDescription& found) const {
    found.input = found.output = kNowhere;
    for (const Variant variant : kZeroCopy) {
        const Candidate& candidate = candidates[variant];
        if (candidate.plan == nullptr) continue;
        const bool attached = is_private(candidate.input, candidate) || is_private(candidate.output, candidate);
        if (attached && (cma_use_ == CmaUse::kNever || candidate.rounds != Rounds::kTwo)) continue;
        found.variants |= u32(1) << variant;
        found.is_private = attached;
        if (attached) found.since = control_.clock().ticks();
        const auto lies = [&](const char* at, u64 blocks) {
            if (attached) return reinterpret_cast<u64>(at);
            const u64 place = at == nullptr ? kNowhere : memory_.place(at);
            if (place < kAdopted) found.end = std::max(found.end, place + blocks * candidate.geometry.unit);
            return place;
        };
        found.input = lies(candidate.input, candidate.plan->header().input_blocks);
        found.output = lies(candidate.output, candidate.plan->header().output_blocks);
    }
}

bool ZeroCopyPath::reachable(Plan& plan, const Candidate& offered) const {
    const auto can_be = [&](Place place, const char* at, u64 blocks) {
        const std::span<const char> buffer(at, at != nullptr ? blocks * offered.geometry.unit : 0);
        Plan::Reachable& known = plan.latest.reachable[place];
        if (buffer.empty() || (buffer.data() == known.buffer.data() && buffer.size() == known.buffer.size()))
            return true;
        if (!memory_.reachable(buffer.data())) return false;
        known = {buffer};
        return true;
    };
    const PlanHeader& h = offered.plan->header();
    return can_be(kInput, offered.input, h.input_blocks) && can_be(kOutput, offered.output, h.output_blocks);
}

// Of a buffer that is used again the kernel is asked seldom, as that takes a microsecond: in calls 1, 2, 4, ... until
// it has huge pages, as one that is new has none before its first call, and then in every so many.
bool ZeroCopyPath::in_huge_pages(Plan& plan, const Candidate& offered) const {
    for (const Place place : {kInput, kOutput}) {
        Plan::Reachable& known = plan.latest.reachable[place];
        if (!offered.plan->view().accessed[place]) continue;
        ++known.asked;
        if (known.asked % kCallsBetweenScans == 0 || (!known.huge && std::has_single_bit(known.asked)))
            known.huge = memory_.in_huge_pages(known.buffer.data(), known.buffer.size());
        if (!known.huge) return false;
    }
    return true;
}

int ZeroCopyPath::open(const Candidate& candidate, const Buffer* buffers) {
    Plan& plan = *candidate.plan;
    if (const int failed = map_peers(plan)) return failed;
    if (candidate.rounds != Rounds::kTwo) {
        fifo_.open(candidate, buffers);  // messages are counted as ever, though those in buffers take no slot
        return 0;
    }
    End* end = plan.ends().data();
    for (const ConnectionRecord& record : plan.connections())
        *end++ = End::open(nullptr, record.sends != 0, record.peer);
    return 0;
}

// Finds the buffers of others that this rank reads or writes.
int ZeroCopyPath::map_peers(const Plan& plan) {
    if (peers_ == nullptr) peers_.reset(new PeerBuffers[control_.size()]);
    for (const ConnectionRecord& record : plan.connections()) {
        if (record.storage == kSlots || lies_here(record)) continue;
        const BufferDescription& lies = control_.said(record.peer).buffers;
        PeerBuffers& theirs = peers_[record.peer];
        if (lies.is_private) {
            theirs = {{reinterpret_cast<char*>(lies.input), reinterpret_cast<char*>(lies.output)}, true};
            continue;
        }
        char* const base = lies.end == 0 ? nullptr : memory_.arena(record.peer, lies.end);
        if (base == nullptr && lies.end != 0) return errno;
        const auto at = [&](u64 place) {
            return place < kAdopted ? base + place : memory_.adopted(record.peer, place);
        };
        theirs = {{at(lies.input), at(lies.output)}, false};
    }
    return 0;
}

Outcome ZeroCopyPath::finish(const Candidate& candidate, Execution<Cpu, End>& running) {
    if (candidate.rounds == Rounds::kTwo) return await_partners(*candidate.plan, running);
    if (is_weakened("READERS")) return {};  // it waits for no reader
    return control_.drive([&] { return running.reader() == nullptr ? Progress::kDone : Progress::kStalled; },
                          [&](const u32* peer, Outcome&) { return running.reader(peer); });
}

// Says that this rank has done its part of a call in two rounds, and waits until those have that use its buffers. What
// it has read itself counts only if its owner had not failed: that rank may have gone on to use its memory.
Outcome ZeroCopyPath::await_partners(const Plan& plan, const Execution<Cpu, End>& running) {
    const std::span<const ConnectionRecord> records = plan.connections();
    const u32 connections = u32(records.size());
    control_.say_done();
    for (const ConnectionRecord& record : records)
        if (!lies_here(record)) control_.wake(record.peer);
    const auto waits_for = [&](u32 c) { return lies_here(records[c]) && !control_.is_done(records[c].peer); };
    u32 next = 0;
    const Outcome outcome = control_.drive(
        [&] {
            const u32 before = next;
            while (next < connections && !waits_for(next)) ++next;
            return next == connections ? Progress::kDone : next != before ? Progress::kMoved : Progress::kStalled;
        },
        [&](const u32* peer, Outcome& late) -> const u32* {
            u32 c = next;
            while (c < connections && !(lies_here(records[c]) && (peer == nullptr || records[c].peer == *peer))) ++c;
            if (c == connections || !waits_for(c)) return nullptr;
            late.more().stall = running.step_of(c);
            return &records[c].peer;
        });
    if (outcome.fault != Fault::kNone) return outcome;
    for (const ConnectionRecord& record : records)
        if (!lies_here(record) && control_.failed(record.peer)) return control_.give_up_for(record.peer);
    return outcome;
}

Outcome ZeroCopyPath::withdraw(Outcome outcome, const BufferDescription& told) const {
    const bool untouched = outcome.fault == Fault::kMismatch || outcome.fault == Fault::kRefused;
    if (untouched || outcome.fault == Fault::kDeclined || told.variants == 0) return outcome;
    for (const u64 place : {told.input, told.output}) {
        if (!told.is_private && place < kAdopted) memory_.keep(place);
        else outcome.exposed |= place != kNowhere;  // as no address is
    }
    return outcome;
}

std::optional<u64> ZeroCopyPath::attached_since(const Plan& plan) const {
    std::optional<u64> since;
    for (const ConnectionRecord& record : plan.connections()) {
        if (!attaches(record)) continue;
        const u64 told = control_.said(record.peer).buffers.since;
        since = since ? std::min(*since, told) : told;
    }
    return since;
}

// The kernel knows a process by a number, which another may get once that has ended. It takes as many new processes as
// there are numbers: who was there a moment ago has its number still.
void ZeroCopyPath::watch(const Plan& plan, u32 thread, u64& looked) {
    if (control_.clock().ticks() - looked <= control_.waiting().recheck_ticks) return;
    looked = control_.clock().ticks();
    for (const ConnectionRecord& record : plan.connections()) {
        if (!attaches(record) || !control_.is_gone(record.peer)) continue;
        copies_[thread].lose(record.peer);
        return;
    }
}

// Since a rank has ended, or its array is gone, or this rank may not access it any more.
Outcome ZeroCopyPath::failure(const CmaCopies& copies) const {
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
