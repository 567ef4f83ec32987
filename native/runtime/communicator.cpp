#include "runtime/communicator.h"

#include <poll.h>
#include <sys/socket.h>
#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace hocket {
namespace {

u64 larger_buffer(const PlanHeader& h, const Geometry& geometry) {
    return (h.input_blocks > h.output_blocks ? h.input_blocks : h.output_blocks) * geometry.unit;
}

// SplitMix64 (Steele, Lea and Flood, OOPSLA'14).
u64 mix(u64 x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

// A hash of all that a rank sends less one of all that it gets. Over all ranks these add up to 0 if every two expect
// the same of each other, and otherwise once in 2^64 times.
u64 difference(u32 rank, const Units& units) {
    const auto transfer = [](u64 source, u64 target, u64 bytes) { return mix(mix(mix(source) + target) + bytes); };
    u64 sum = 0;
    for (u64 r = 0; r + 1 < units.bounds[kInput].size(); ++r) {
        const auto bytes = [&](Place place) { return units.bounds[place][r + 1] - units.bounds[place][r]; };
        sum += transfer(rank, r, bytes(kInput)) - transfer(r, rank, bytes(kOutput));
    }
    return sum;
}

u64 signature(const Terms& terms) {
    u64 hash = 0;
    const u64 rest = u64(terms.element) << 32 | terms.flags;
    for (const u64 word : {terms.digest, terms.n, terms.tile, terms.counts, u64(terms.type), u64(terms.op), rest})
        hash = mix(hash ^ word);
    return hash;
}

// Where the result of a call lies.
const char* result_of(const Call& call) { return call.output != nullptr ? call.output : call.input; }

// Stores a text of UTF-8, or as many of its characters as there is room for.
template <u64 N> void say(char (&text)[N], const std::string& what) {
    u64 length = what.size() < N ? what.size() : N - 1;
    while (length < what.size() && length != 0 && (what[length] & 0xc0) == 0x80) --length;
    std::memcpy(text, what.data(), length);
    text[length] = 0;
}

}  // namespace

void Look::at_buffers(const Tunables& tuned) {
    // Two places where a call ends that had the same buffers, not so near to the end that another buffer begins there,
    // nor to where this call begins.
    const auto all_far = [&](std::span<const char> buffer) {
        const u64 margin = tuned.probe_margin_bytes, near = tuned.near_ticks;
        if (buffer.size() < 2 * margin) return true;
        return is_far(&buffer[buffer.size() / 2 - margin], near) && is_far(&buffer[buffer.size() - margin], near);
    };
    far = is_far != nullptr && all_far(input) && all_far(output);
    const u64 wanted = lent || far ? 0 : std::min<u64>(output.size(), tuned.waiting_prefetch_bytes);
    for (u64 at = 0; at < wanted; at += kCacheLine) __builtin_prefetch(&output[at], 1);
    for (u64 at = 0; at < next_message.size(); at += kCacheLine) __builtin_prefetch(&next_message[at], 1);
}

Plan::Plan(Communicator& communicator, std::vector<u32> words, u64 digest, std::string name)
    : words_(std::move(words)),
      digest_(digest),
      name_(std::move(name)),
      author_(communicator.authors_++) {
    if (const char* wrong = view_plan(words_.data(), words_.size(), view_))
        throw std::invalid_argument(std::string("this is no plan: ") + wrong);
    const PlanHeader& h = header();
    if (h.rank != communicator.rank() || h.ranks != communicator.size())
        throw std::invalid_argument("this plan is for another rank");
    for (u32 c = 0; c < h.connections; ++c) {
        const ConnectionRecord& record = view_.connections[c];
        const u32 source = record.sends ? h.rank : record.peer, target = record.sends ? record.peer : h.rank;
        Window* window = communicator.memory().window(source, record.multicast ? source : target, record.channel);
        if (window == nullptr) throw std::invalid_argument("this plan uses too many channels");
        windows_.push_back(window);
    }
    for (u32 m = 0; m < h.multicasts; ++m) {
        const MulticastRecord& record = view_.multicasts[m];
        Window* window = communicator.memory().window(record.source, record.source, record.channel);
        if (window == nullptr) throw std::invalid_argument("this plan uses too many channels");
        multicasts_.push_back(window);
    }
    ends_.resize(h.connections);
    cursors_.resize(h.blocks);
    pointers_.resize(2 * u64(view_.most_operands) * communicator.threads());
    owners_.resize(pointers_.size());
}

// How a call of this plan says what its elements are.
const Plan::Opaque& Plan::opaque(const std::string& element, Communicator& communicator) {
    if (opaque_.author == 0 || opaque_.element != element) {
        u64 digest = element.size();
        for (const char byte : element) digest = mix(digest ^ u64(static_cast<unsigned char>(byte)));
        opaque_ = {element, u32(digest), communicator.authors_++, name_ + "\n\n" + element};
    }
    return opaque_;
}

Communicator::Communicator(u32 rank, u32 size, Memory& memory, std::vector<int> lifelines, Settings settings)
    : rank_(rank),
      size_(size),
      memory_(memory),
      control_(memory.control()),
      lifelines_(std::move(lifelines)),
      settings_(settings),
      slots_habits_{settings.tunables.fifo_sums_past_bytes, settings.tunables.fifo_copies_past_bytes,
                    Manner(settings.tunables.fifo_by_lines)},
      lent_habits_{settings.tunables.lent_sums_past_bytes, settings.tunables.lent_copies_past_bytes,
                   Manner(settings.tunables.lent_by_lines)},
      calls_(settings.first),
      outcomes_(settings.threads),
      moved_(settings.threads) {
    for (CallHeader& line : control_[rank_].headers) line.signature = signature(line.terms);
    if (settings_.reaching != Reaching::kNever)
        for (u32 t = 0; t < settings_.threads; ++t) beyond_.emplace_back(memory_);
    control_[rank_].done = calls_;  // not 0, which may be after the first call where the number wraps
}

Outcome Communicator::run(Plan& plan, const Call& call) {
    Outcome outcome = recorded(plan.author_, [&](auto event) { return carry_out(plan, call, event); });
    if (call.finish.result != nullptr && outcome.fault == Fault::kNone) finish(call.finish, outcome.way);
    return outcome;
}

void Communicator::finish(const Finish& left, Way way) const {
    if (left.taken != nullptr && way == kThroughSlots) std::memcpy(left.result, left.taken, left.bytes);
    if (left.divide != nullptr) left.divide(left.result, left.bytes, size_);
}

// Calls body(event) and records what it notes there. Where nobody records, or there is no room, it gets nullptr: an
// instantiation of its own.
template <class Body> Outcome Communicator::recorded(u64 plan, Body body) {
    return settings_.recorder == nullptr ? body(nullptr) : record(plan, body);
}

// Apart, so that whoever is not recorded pays no more than the test.
template <class Body> [[gnu::noinline]] Outcome Communicator::record(u64 plan, Body body) {
    Recorder* recorder = settings_.recorder;
    CallEvent event{.plan = plan, .begin = recorder->clock.ticks()};
    Outcome outcome = recorder->calls.full() ? body(nullptr) : body(&event);
    if (outcome.fault == Fault::kDead) return outcome;
    event.number = calls_;
    event.fault = u32(outcome.fault);
    event.end = recorder->clock.ticks();
    if (event.agreed == 0 && outcome.fault == Fault::kNone) event.agreed = event.end;
    recorder->calls.record(event);
    return outcome;
}

template <class Event> Outcome Communicator::carry_out(Plan& plan, const Call& call, Event event) {
    constexpr bool watched = !std::is_null_pointer_v<Event>;
    if (dead()) return is_dead();
    // Where the message will lie in the header's line, if this call is like the latest: others have it. Where it will
    // not, too much lies between, and they would get it again.
    if (plan.latest_.settled.in_one_round() && plan.latest_.settled.geometry.unit <= kInlined)
        __builtin_prefetch(&control_[rank_].headers[(calls_ + 1) % 2], 1);
    Terms mine{plan.digest_, call.n, call.tile, 0, call.type, call.op, call.size_known ? 0u : u32(kSizeUnknown)};
    const std::string* text = &plan.name_;
    u64 author = plan.author_;
    if (call.element != nullptr) {
        const Plan::Opaque& opaque = plan.opaque(*call.element, *this);
        mine.element = opaque.digest;
        text = &opaque.text;
        author = opaque.author;
    }
    std::string counted;
    if (call.units != nullptr) {
        mine.counts = call.units->digest ? *call.units->digest : difference(rank_, *call.units);
        mine.flags |= kCounted | (call.units->digest ? 0u : kPairwise);
        counted = plan.name_ + "\n" + call.units->text + (call.element ? "\n" + *call.element : "");
        text = &counted;
        author = kNobody;
    }
    Candidate candidates[kWays] = {{{}, plan.lends() ? nullptr : &plan, call.input, call.output}};
    if (call.offer != nullptr)
        for (const Way way : kLent)
            candidates[way] = {{}, call.offer->plans[way], call.offer->input, call.offer->output};
    Candidate& first = candidates[kThroughSlots];
    bool inlined = false;  // where a message would be, there is no room to offer anything
    u64 n = call.n;
    u32 type = call.type;
    const auto prepare_one = [&](Candidate& candidate, bool in_one_round) {
        const u64 tile = candidate.plan == &plan ? call.tile : 0;  // of no other that takes its place
        return prepare(candidate, call.op, n, type, tile, in_one_round);
    };
    const auto prepare_all = [&] {
        for (Candidate& candidate : candidates) {
            if (candidate.plan == nullptr) continue;
            if (inlined) {
                candidate.plan = nullptr;
                continue;
            }
            if (const int failed = prepare_one(candidate, !(mine.flags & kPairwise))) return failed;
            inlined = first.in_one_round() && first.geometry.unit <= kInlined;
        }
        return 0;
    };
    const auto execution = [&](const Candidate& way, char* input, char* output) {
        const auto bounds = [&](Place place) { return call.units ? call.units->bounds[place].data() : nullptr; };
        const PlanHeader& h = way.plan->header();
        const Buffer buffers[3] = {{input, way.geometry.unit, h.chunks, bounds(kInput)},
                                   {output, way.geometry.unit, h.chunks, bounds(kOutput)},
                                   {scratch_.get(), h.scratch * way.geometry.chunk, h.scratch}};
        return Execution<Cpu>(way.plan->view_, way.geometry, buffers, theirs_.get(), way.plan->cursors_.data(),
                              way.plan->ends_.data(), way.rounds);
    };
    const bool sure = !(mine.flags & (kSizeUnknown | kPairwise));  // of the size, before the others have said theirs
    if (sure) {
        if (const int failed = prepare_all()) {
            Outcome outcome = refuse(std::string("it has no memory for slots and scratch: ") + std::strerror(failed));
            if (outcome.fault == Fault::kRefused) outcome.fault = Fault::kMemory;
            return outcome;
        }
    }
    Places lies = inlined ? Places{} : places(candidates);
    const bool reached = lies.reached != 0;
    bool contested = false, looks = false;
    u64 begun = 0;
    if (reached) {
        begun = clock_.ticks();
        contested = settings_.reaching == Reaching::kWhereFaster;
        looks = contested && contests(plan).looks(first.geometry.unit);
        const bool wanted = !contested || contests(plan).next(first.geometry.unit).second();
        if (!wanted || !lets_reach(plan, candidates[std::countr_zero(lies.ways)])) lies = {};
    }
    Look seen = sure ? look(plan, call, candidates, reached, looks) : Look{};
    seen.lent = lies.ways != 0;
    seen.timed = contested;
    lies.contested = contested;
    lies.took = contested_.took;
    Traffic sent{};
    if (first.in_one_round() && lies.ways == 0) {
        open_round(plan, first.geometry, calls_ + 1);
        // What is to be copied into a buffer is still where it comes from.
        const auto shift = call.initial_bytes != 0 ? call.initial - call.initial_to : 0;
        Cpu cpu{first.kernel, control_, rank_, false, Past::kNothing, habits(kThroughSlots).manner};
        execution(first, call.input ? call.input + shift : nullptr, call.input ? call.output : call.output + shift)
            .send(cpu, plan.room(0, false));
        sent = cpu.moved;
        const u64 bytes = plan.header().eager * first.geometry.tile;
        seen.brief_comes =
            size_ == 2 && !inlined && bytes <= settings_.tunables.reader_prefetch_bytes && plan.view_.receives;
        // Where results are elsewhere each time, they are in no cache, and to ask for more would only delay them.
        const u64 soon =
            plan.view_.receives ? std::min(sent.stored, settings_.tunables.sending_prefetch_bytes) : sent.stored;
        if (bytes > settings_.tunables.reader_prefetch_bytes && plan.result_ == result_of(call))
            seen.next_message = {eager(rank_, calls_ + 2, bytes), soon};
    }
    const Places* told = inlined ? nullptr : &lies;
    Outcome entered = enter(mine, *text, author, told, &seen);
    if (entered.fault != Fault::kNone) return withdrawn(std::move(entered), lies);
    if (!sure) {
        n = 0;
        bool known = false;
        for (u32 r = 0; r < size_; ++r) {
            const Terms& terms = said(r).terms;
            if (terms.flags & kSizeUnknown) continue;
            known = true;
            type = terms.type;
            if (terms.n > n) n = terms.n;
        }
        if (!known) return {};  // nobody has data
        if (const int failed = prepare_all()) return withdrawn(no_memory("slots and scratch", failed), lies);
    }
    if (!inlined) judge();
    const bool any = !inlined && any_contested();
    if (any) contests(plan).next(first.geometry.unit).next();
    const u64 agreed = contested ? clock_.ticks() : 0;
    const Ways ways = inlined ? Ways{} : offered();
    const Way way = ways.common == 0 ? kThroughSlots : Way(std::countr_zero(ways.common));
    if (way == kThroughSlots && first.in_one_round()) {
        if (ways.any != 0) {  // whoever lends has sent nothing
            if (const int failed = prepare_one(first, false))
                return withdrawn(no_memory("slots and scratch", failed), lies);
        } else {
            if (!sure) open_round(plan, first.geometry, calls_);  // without an input there is nothing to send
            add(0, sent);
        }
    }
    const Candidate& chosen = candidates[way];
    if (way != kThroughSlots)
        if (const int failed = borrow(*chosen.plan)) return withdrawn(no_memory("the arrays of others", failed), lies);
    if (chosen.rounds == Rounds::kMany) open(chosen);
    if (chosen.rounds == Rounds::kTwo) open_in_place(*chosen.plan);
    if (call.initial_bytes != 0 && way == kThroughSlots) std::memcpy(call.initial_to, call.initial, call.initial_bytes);
    Execution<Cpu> running = execution(chosen, chosen.input, chosen.output);
    const PlanHeader& h = chosen.plan->header();
    u32 threads = wanted_threads(chosen);
    if (threads > 1) threads = team_.grow(threads);
    const std::optional<u64> since = way != kThroughSlots ? reaches_since(*chosen.plan) : std::nullopt;
    const bool reaching = since.has_value();
    Past past = Past::kNothing;  // as in one round, which is brief
    if (!chosen.in_one_round()) {
        if (touched(chosen, chosen.input, chosen.output) > settings_.cache_bytes) past = Past::kAll;
        else if (!reaching && seen.far) past = habits(way).past(seen.most());
    }
    plan.result_ = result_of(call);
    plan.stored_past_ = !reaching && has_past(*chosen.plan, past) ? plan.result_ : nullptr;
    if constexpr (watched) {
        event->plan = chosen.plan->author_;
        event->agreed = settings_.recorder->clock.ticks();
        event->unit = chosen.geometry.unit;
        event->tile = chosen.geometry.tile;
        event->tiles = chosen.geometry.tiles;
        event->threads = threads;
        event->rounds = u32(chosen.rounds);
        event->past = u32(past);
    }
    const auto work = [&](u32 thread) -> Outcome {
        const u32 begin = u32(u64(h.blocks) * thread / threads), end = u32(u64(h.blocks) * (thread + 1) / threads);
        const Room room = chosen.plan->room(thread, reaching);
        Reach* const beyond = reaching ? &beyond_[thread] : nullptr;
        u64 looked = since.value_or(0);
        auto layer = [&] {
            const Cpu cpu{chosen.kernel, control_, rank_, threads > 1, past, habits(way).manner, beyond};
            if constexpr (watched) return WatchedCpu(cpu, *settings_.recorder, thread, calls_, event->agreed);
            else return cpu;
        }();
        Outcome found = drive(
            [&] {
                if (reaching && clock_.ticks() - looked > settings_.tunables.recheck_ticks) {
                    looked = clock_.ticks();
                    if (const std::optional<u32> gone = gone_owner(*chosen.plan)) beyond->lose(*gone);
                }
                const Progress progress = running.advance(layer, room, begin, end);
                if (progress == Progress::kStalled) layer.stalls();
                return progress;
            },
            [&](const u32* peer, Outcome& outcome) {
                for (u32 b = begin; b < end; ++b) {
                    Stall stall{};
                    if (!running.stalled(b, stall) || !stall.remote) continue;
                    if (peer && stall.peer != *peer) continue;
                    outcome.stalled = true;
                    outcome.stall = stall;
                    return true;
                }
                return false;
            });
        layer.drain();
        add(thread, layer.moved);
        if (found.fault == Fault::kNone && reaching && beyond->error() != 0) found = unreached(*beyond);
        return found;
    };
    const auto work_together = [&] {
        team_.together([&](u32 thread) {
            if (thread < threads) outcomes_[thread] = work(thread);
        });
        // One that fails ends the communicator, and so the others: the first cause is the one that is not "dead
        // before".
        Outcome* cause = &outcomes_[0];
        for (u32 t = 1; t < threads; ++t)
            if (cause->fault == Fault::kNone || (cause->fault == Fault::kDead && outcomes_[t].fault != Fault::kNone))
                cause = &outcomes_[t];
        return std::move(*cause);
    };
    Outcome found = threads == 1 ? work(0) : work_together();
    if (found.fault == Fault::kNone && way != kThroughSlots) {
        if (chosen.rounds == Rounds::kTwo) found = await_partners(*chosen.plan, running);
        else if (!HOCKET_RELAX_READERS) found = await_readers(running);
    }
    found.way = way;
    if (found.fault != Fault::kNone) return withdrawn(std::move(found), lies);
    if (any) {
        const auto ticks = [](u64 from, u64 to) { return u32(std::clamp<u64>((to - from) / 16, 1, ~0u)); };
        const bool far = seen.is_far != nullptr ? seen.far : contests(plan).far(first.geometry.unit);
        const Took took{ticks(begun, seen.begun), ticks(agreed, clock_.ticks()), far};
        contested_ = {&contests(plan), first.geometry.unit, way != kThroughSlots, contested ? took : Took{}};
    }
    return found;
}

// What there is to look at. Nobody looks where no plan has a result that would be stored past the caches, nor at an
// output that a look would give a page of zeroes, nor at a result that is in no cache only because it was stored so, if
// there is nothing else to look at: in a loop on one array, that would go on for ever. Where buffers are `reached`, it
// is mostly the kernel that stores there, through the caches: but for slots only a contest wants to know, in calls in
// which it `looks`.
Look Communicator::look(const Plan& plan, const Call& call, const Candidate (&candidates)[kWays], bool reached,
                        bool looks) const {
    Look found;
    const auto bytes = [&](Place place, u64 blocks) {
        return call.units ? call.units->bounds[place].back() : blocks * call.n * type_bytes(call.type);
    };
    if (call.input != nullptr) found.input = {call.input, bytes(kInput, plan.header().input_blocks)};
    if (call.output != nullptr) found.output = {call.output, bytes(kOutput, plan.header().output_blocks)};
    const bool alone = call.input == nullptr || call.output == nullptr;
    if (call.fresh || (alone && result_of(call) == plan.stored_past_)) return found;
    if (looks) found.is_far = settings_.is_far;
    for (u32 way = 0; way < kWays; ++way) {
        const Candidate& candidate = candidates[way];
        if (candidate.plan == nullptr || candidate.in_one_round() || (way != kThroughSlots && reached)) continue;
        if (has_past(*candidate.plan, habits(Way(way)).past(found.most()))) found.is_far = settings_.is_far;
    }
    return found;
}

// Whether a plan stores anything past the caches where it may.
bool Communicator::has_past(const Plan& plan, Past past) {
    return (past == Past::kAll && plan.view_.has_last) || (past == Past::kSums && plan.view_.has_last_sum);
}

// Settles a candidate and sees to memory. Returns 0 or an errno. What has been reserved stays, also where more cannot
// be had, so there is nothing to see to for a plan that is settled as it was.
int Communicator::prepare(Candidate& candidate, u32 op, u64 n, u32 type, u64 tile, bool in_one_round) {
    candidate.kernel = candidate.plan->combines() ? kernels().reduce[type][op] : kernels().move;
    Plan::Latest& latest = candidate.plan->latest_;
    if (latest.n == n && latest.type == type && latest.tile == tile && latest.in_one_round == in_one_round) {
        static_cast<Settled&>(candidate) = latest.settled;
        return 0;
    }
    settle(candidate, n, type, tile, in_one_round);
    if (const int failed = reserve(candidate)) return failed;
    latest = {n, tile, type, in_one_round, static_cast<const Settled&>(candidate)};
    return 0;
}

void Communicator::settle(Candidate& candidate, u64 n, u32 type, u64 tile, bool in_one_round) const {
    const PlanHeader& h = candidate.plan->header();
    const u64 widest = std::max(h.widest, 1u);
    Geometry& geometry = candidate.geometry;
    candidate.slots = std::bit_ceil(std::max<u64>(h.slots, settings_.tunables.slots));
    const u64 room = std::bit_floor((kWindowStride - kPage) / (candidate.slots * widest));  // of a window, for one tile
    if (h.widest != 0 && tile > room) tile = std::max(room, kAlign);
    geometry = cut(n, type_bytes(type), h.chunks, widest, kEager, tile);
    const bool one = h.eager != 0 && geometry.tiles == 1 && h.eager * geometry.tile <= kEager && in_one_round;
    candidate.rounds = one ? Rounds::kOne : h.two_rounds != 0 ? Rounds::kTwo : Rounds::kMany;
    if (one) return;
    geometry = cut(n, type_bytes(type), h.chunks, widest, most_of_slot(h, candidate.slots), tile, h.work, h.depth);
    const u64 used = h.fan * geometry.chunk / geometry.tiles, taken = h.fan * geometry.tile;  // of slots, in the mean
    const u64 least = settings_.tunables.short_slots_bytes;
    u64& slots = candidate.slots;
    while (slots < settings_.tunables.most_slots && slots * used < least && slots * taken < 2 * least) slots *= 2;
}

// What this rank has to say of its buffers: those of all ways are the same.
Places Communicator::places(const Candidate (&candidates)[kWays]) const {
    Places found{0, 0, kNowhere, kNowhere, 0, 0, {}};
    for (const Way way : kLent) {
        const Candidate& candidate = candidates[way];
        if (candidate.plan == nullptr) continue;
        const PlanHeader& h = candidate.plan->header();
        const auto is_private = [&](const char* at) {
            return at != nullptr && candidate.geometry.unit != 0 && memory_.place(at) == kNowhere;
        };
        if (is_private(candidate.input) || is_private(candidate.output)) {
            if (settings_.reaching == Reaching::kNever || candidate.rounds != Rounds::kTwo) continue;
            const u64 input = reinterpret_cast<u64>(candidate.input), output = reinterpret_cast<u64>(candidate.output);
            found = {found.ways | u32(1) << way, 1, input, output, clock_.ticks(), 0, {}};
            continue;
        }
        found.ways |= u32(1) << way;
        const auto lies = [&](const char* at, u64 blocks) {
            const u64 place = at == nullptr ? kNowhere : memory_.place(at);
            if (place != kNowhere) found.end = std::max(found.end, place + blocks * candidate.geometry.unit);
            return place;
        };
        found.input = lies(candidate.input, h.input_blocks);
        found.output = lies(candidate.output, h.output_blocks);
    }
    return found;
}

Ways Communicator::offered() const {
    Ways found{~u64(0), 0};
    for (u32 r = 0; r < size_; ++r) {
        found.common &= said(r).places.ways;
        found.any |= said(r).places.ways;
    }
    return found;
}

Contests& Communicator::contests(Plan& plan) {
    if (plan.contests_ == nullptr)
        plan.contests_ = &contests_.try_emplace(plan.digest_, settings_.tunables).first->second;
    return *plan.contests_;
}

// Notes what the latest contested call took, once all have said what it took them: what its slowest rank took to enter,
// which is when all in one round is sent, and what its slowest took after. All come to the same, and go one way next.
void Communicator::judge() {
    if (contested_.contests == nullptr) return;
    Took slowest{0, 0, 1};
    for (u32 r = 0; r < size_; ++r) {
        const Took& took = said(r).places.took;
        if (took.after == 0) continue;
        slowest = {std::max(slowest.before, took.before), std::max(slowest.after, took.after), slowest.far & took.far};
    }
    const u64 took = u64(slowest.before) + slowest.after;
    contested_.contests->took(contested_.unit, slowest.far, contested_.second, took);
    contested_ = {};
}

bool Communicator::any_contested() const {
    for (u32 r = 0; r < size_; ++r)
        if (said(r).places.contested) return true;
    return false;
}

// Finds the buffers of others that this rank reads or writes. Returns 0 or an errno.
int Communicator::borrow(const Plan& plan) {
    if (theirs_ == nullptr) theirs_.reset(new Theirs[size_]);
    for (u32 c = 0; c < plan.header().connections; ++c) {
        const ConnectionRecord& record = plan.view_.connections[c];
        if (record.storage == kSlots || lies_here(record)) continue;
        const Places& lies = said(record.peer).places;
        if (lies.end == 0) continue;  // it has nothing
        Theirs& theirs = theirs_[record.peer];
        if (lies.reached) {
            theirs = {{reinterpret_cast<char*>(lies.input), reinterpret_cast<char*>(lies.output)}, true};
            continue;
        }
        char* const base = memory_.arena(record.peer, lies.end);
        if (base == nullptr) return errno;
        theirs = {{base + lies.input, base + lies.output}, false};
    }
    return 0;
}

// Whether others can reach this rank's buffers.
bool Communicator::lets_reach(Plan& plan, const Candidate& offered) const {
    if (!memory_.open()) return false;
    const PlanHeader& h = offered.plan->header();
    const std::span<const char> buffers[] = {
        {offered.input, offered.input ? h.input_blocks * offered.geometry.unit : 0},
        {offered.output, offered.output ? h.output_blocks * offered.geometry.unit : 0}};
    for (const u32 place : {kInput, kOutput}) {
        const std::span<const char> buffer = buffers[place];
        std::span<const char>& known = plan.reachable_[place];
        if (buffer.empty() || (buffer.data() == known.data() && buffer.size() == known.size())) continue;
        if (!memory_.reachable(buffer.data(), buffer.size())) return false;
        known = buffer;
    }
    return true;
}

bool Communicator::reaches(const ConnectionRecord& record) const {
    return record.storage != kSlots && !lies_here(record) && said(record.peer).places.reached;
}

// Since when this rank knows where private memory lies that it is to reach; none where there is nothing to reach.
std::optional<u64> Communicator::reaches_since(const Plan& plan) const {
    std::optional<u64> since;
    for (u32 c = 0; c < plan.header().connections; ++c) {
        const ConnectionRecord& record = plan.view_.connections[c];
        if (!reaches(record)) continue;
        const u64 told = said(record.peer).places.end;
        since = since ? std::min(*since, told) : told;
    }
    return since;
}

// A rank that has ended whose private memory this one is to reach. The kernel knows it by a number, which another
// process may get then. That takes as many new processes as there are numbers: who was there a moment ago has its
// number still.
std::optional<u32> Communicator::gone_owner(const Plan& plan) const {
    for (u32 c = 0; c < plan.header().connections; ++c) {
        const ConnectionRecord& record = plan.view_.connections[c];
        if (!reaches(record)) continue;
        if (is_gone(record.peer)) return record.peer;
    }
    return std::nullopt;
}

// How a call fails that could not reach the memory of another rank: since that has ended, or its array is gone, or this
// rank may not any more.
Outcome Communicator::unreached(const Reach& beyond) {
    const RankBlock& owner = control_[beyond.rank()];
    if (failed(beyond.rank())) return given_up({Fault::kPeer, u32(owner.culprit), owner.text});
    const std::string why = std::strerror(beyond.error());
    if (beyond.error() == ESRCH) return given_up({Fault::kPeer, beyond.rank(), "has ended"});
    if (beyond.error() == EFAULT)
        return given_up({Fault::kPeer, beyond.rank(), "has an array that cannot be reached: " + why});
    const std::string whose = "may not access the memory of rank " + std::to_string(beyond.rank()) + " any more: ";
    return given_up({Fault::kPeer, rank_, whose + why + " (HOCKET_REACH=never does without)"});
}

// Waits until nobody reads this rank's buffers any more.
Outcome Communicator::await_readers(Execution<Cpu>& running) {
    return drive([&] { return running.reader() == nullptr ? Progress::kDone : Progress::kStalled; },
                 [&](const u32* peer, Outcome& outcome) {
                     if (peer != nullptr) return running.reads(*peer);
                     const u32* reader = running.reader();
                     if (reader != nullptr) outcome.rank = *reader;
                     return reader != nullptr;
                 });
}

// Says that this rank has done its part of a call in two rounds, and waits until those have that use its buffers. What
// it has read itself counts only if its owner had not failed: that rank may have gone on to use its memory.
Outcome Communicator::await_partners(const Plan& plan, const Execution<Cpu>& running) {
    const u32 connections = plan.header().connections;
    const ConnectionRecord* const records = plan.view_.connections;
    publish_done(&control_[rank_].done, calls_);  // pairs with observe_done below, on those whose buffers it used
    for (u32 c = 0; c < connections; ++c)
        if (!lies_here(records[c])) ring(control_[records[c].peer].bell);
    const auto done = [&](u32 rank) {
        return (observe_done(&control_[rank].done) - calls_) >> 63 ==
               0;  // pairs with publish_done; calls may wrap
    };
    u32 next = 0;
    Outcome outcome = drive(
        [&] {
            const u32 before = next;
            while (next < connections && (!lies_here(records[next]) || done(records[next].peer))) ++next;
            return next == connections ? Progress::kDone : next != before ? Progress::kMoved : Progress::kStalled;
        },
        [&](const u32* peer, Outcome& late) {
            u32 c = next;
            while (peer != nullptr && c < connections && !(lies_here(records[c]) && records[c].peer == *peer)) ++c;
            if (c == connections || done(records[c].peer)) return false;
            late.stalled = true;
            late.stall = running.step_of(c);
            return true;
        });
    for (u32 c = 0; c < connections && outcome.fault == Fault::kNone; ++c) {
        const RankBlock& owner = control_[records[c].peer];
        if (!lies_here(records[c]) && failed(records[c].peer))
            outcome = given_up({Fault::kPeer, u32(owner.culprit), owner.text});
    }
    return outcome;
}

// How a call fails that this rank has told others `lies` in. After a fault that they may not know of, they may go on
// with the call, and access what lies there.
Outcome Communicator::withdrawn(Outcome outcome, const Places& lies) {
    if (outcome.fault == Fault::kMismatch || outcome.fault == Fault::kRefused || lies.ways == 0) return outcome;
    if (lies.reached) {
        outcome.exposed = true;
        return outcome;
    }
    for (const u64 place : {lies.input, lies.output})
        if (place != kNowhere) memory_.keep(place);
    return outcome;
}

Outcome Communicator::no_memory(const char* what, int error) {
    return given_up({Fault::kPeer, rank_, std::string("has no memory for ") + what + ": " + std::strerror(error)});
}

Outcome Communicator::barrier() {
    return recorded(kBarrier, [&](auto) { return enter({}, "barrier", kBarrier); });
}

Outcome Communicator::exchange(const std::string& word) {
    return recorded(kNobody, [&](auto) { return enter({.digest = kExchange}, word, kNobody); });
}

Outcome Communicator::refuse(const std::string& why) { return enter({.flags = kRefused}, why, kNobody); }

// A line has one writer at a time: the threads of one call have each their own, and calls do not overlap. Relaxed: a
// reader elsewhere gets a number, and nothing else by it.
void Communicator::add(u32 thread, const Traffic& moved) {
    Traffic& sum = moved_[thread].sum;
    __atomic_store_n(&sum.loaded, sum.loaded + moved.loaded, __ATOMIC_RELAXED);  // pairs with `traffic`
    __atomic_store_n(&sum.stored, sum.stored + moved.stored, __ATOMIC_RELAXED);  // pairs with `traffic`
}

Traffic Communicator::traffic() const {
    Traffic all{};
    for (const Moved& moved : moved_) {
        all.loaded += __atomic_load_n(&moved.sum.loaded, __ATOMIC_RELAXED);  // pairs with `add`
        all.stored += __atomic_load_n(&moved.sum.stored, __ATOMIC_RELAXED);  // pairs with `add`
    }
    return all;
}

// Sets the ends to the slots of connections, which are empty before a call.
void Communicator::open(const Candidate& candidate) {
    Plan& plan = *candidate.plan;
    const Geometry& geometry = candidate.geometry;
    const PlanHeader& h = plan.header();
    for (u32 c = 0; c < h.connections; ++c) {
        const ConnectionRecord& record = plan.view_.connections[c];
        const Window& window = *plan.windows_[c];
        Counters& counters = *window.counters;
        plan.ends_[c] = {&counters.filled.count,
                         &counters.freed[record.reader].count,
                         window.slots(),
                         record.width * geometry.tile,
                         record.storage == kSlots ? candidate.slots : kUnbounded,
                         0,
                         0,
                         0,
                         record.peer,
                         record.more};
        if (record.multicast != 0) plan.ends_[c].begin_after(window.passed);
        else plan.ends_[c].begin(record.sends != 0);
    }
    for (u32 m = 0; m < h.multicasts; ++m)
        plan.multicasts_[m]->passed += plan.view_.multicasts[m].messages * geometry.tiles;
}

// Sets the ends to where the messages of a call in one round lie, in the senders' own memory.
void Communicator::open_round(Plan& plan, const Geometry& geometry, u64 call) {
    const bool inlined = plan.header().eager == 1 && geometry.unit <= kInlined;
    const u64 bytes = plan.header().eager * geometry.tile;
    for (u32 c = 0; c < plan.header().connections; ++c) {
        const ConnectionRecord& record = plan.view_.connections[c];
        const u32 sender = record.sends ? rank_ : record.peer;
        char* area = inlined ? control_[sender].headers[call % 2].inlined : eager(sender, call, bytes);
        plan.ends_[c] = End::open(area + record.place * geometry.tile, record.sends != 0, record.peer);
    }
}

// In two rounds there are no slots.
void Communicator::open_in_place(Plan& plan) {
    for (u32 c = 0; c < plan.header().connections; ++c) {
        const ConnectionRecord& record = plan.view_.connections[c];
        plan.ends_[c] = End::open(nullptr, record.sends != 0, record.peer);
    }
}

// The same on all ranks, as the tile follows from it.
u64 Communicator::most_of_slot(const PlanHeader& h, u64 slots) const {
    const Tunables& tuned = settings_.tunables;
    if (h.widest == 0) return tuned.lent_tile_bytes;
    return std::min(tuned.slot_bytes,
                    std::max(tuned.rank_slots_bytes * h.widest / (h.fan * slots), tuned.least_slot_bytes));
}

u32 Communicator::wanted_threads(const Candidate& candidate) const {
    const PlanHeader& h = candidate.plan->header();
    if (larger_buffer(h, candidate.geometry) < settings_.team_bytes) return 1;
    return std::max(1u, std::min(settings_.threads, h.blocks));
}

u64 Communicator::touched(const Candidate& candidate, bool input, bool output) const {
    const Plan& plan = *candidate.plan;
    const Geometry& geometry = candidate.geometry;
    const PlanHeader& h = plan.header();
    u64 chunks = 0;
    for (u32 c = 0; c < h.connections; ++c) chunks += plan.view_.connections[c].width;
    const u64 blocks = (input ? h.input_blocks : 0) + (output ? h.output_blocks : 0);
    const u64 own = blocks * geometry.unit + h.scratch * geometry.chunk;
    return size_ * (own + candidate.slots * chunks * geometry.tile / 2);  // a connection has two ends
}

int Communicator::reserve(const Candidate& candidate) {
    Plan& plan = *candidate.plan;
    const Geometry& geometry = candidate.geometry;
    const u64 slots = candidate.in_one_round() ? 0 : candidate.slots;
    const u32 connections = candidate.rounds == Rounds::kTwo ? 0 : plan.header().connections;
    for (u32 c = 0; c < connections; ++c) {
        const u64 bytes = slots * plan.view_.connections[c].width * geometry.tile;
        if (plan.windows_[c]->counters != nullptr && bytes <= plan.windows_[c]->bytes) continue;
        if (const int failed = memory_.reserve(plan.windows_[c], bytes)) return failed;
    }
    u64 scratch = 0;  // a chunk is a multiple of kAlign
    if (__builtin_mul_overflow(u64(plan.header().scratch), geometry.chunk, &scratch)) return ENOMEM;
    if (scratch > scratch_bytes_) {
        auto* more = static_cast<char*>(std::aligned_alloc(kAlign, scratch));
        if (more == nullptr) return ENOMEM;
        scratch_.reset(more);
        scratch_bytes_ = scratch;
    }
    return 0;
}

// Says what this rank calls and waits until all have said it. Nobody stores to an output or a peer before.
//
// A line is used by every other call. Storing the line of call c + 2 over that of call c is safe without a closing
// barrier: this rank has then seen all lines of call c + 1, and a rank posts that line only after it has read all lines
// of call c (below) and finished call c. The latter also means that all connections are empty when a call begins to use
// them, whatever layout of slots the call before had. What a rank sends in one round is stored before, for the same
// reason, but not by a rank that is dead: it may never have seen the lines of call c + 1.
//
// What the line holds already is not stored again: the other ranks may have it in their caches. While it waits, the
// rank looks at its buffers.
Outcome Communicator::enter(const Terms& mine, const std::string& text, u64 author, const Places* places, Look* look) {
    if (dead()) return is_dead();
    const u64 call = ++calls_;
    CallHeader& line = control_[rank_].headers[call % 2];
    if (!(line.terms == mine)) {
        line.terms = mine;
        line.signature = signature(mine);
    }
    if (author == kNobody || author != written_[call % 2]) {
        say(line.text, text);
        written_[call % 2] = author;
    }
    if (places != nullptr) line.places = *places;
    publish_header(&line.call, call);  // pairs with observe_header below, on every other rank
    for (u32 r = 0; r < size_; ++r)
        if (r != rank_) ring(control_[r].bell);
    if (look != nullptr) {
        if (look->timed) look->begun = clock_.ticks();
        look->at_buffers(settings_.tunables);
    }
    u32 next = 0;
    Outcome entered = drive(
        [&] {
            const u32 before = next;
            if (look != nullptr && look->brief_comes) {
                const char* message = eager(1 - rank_, call, kFewBytes);
                __builtin_prefetch(message);
                __builtin_prefetch(message + kCacheLine);
            }
            // Pairs with publish_header above.
            while (next < size_ && observe_header(&control_[next].headers[call % 2].call) == call) ++next;
            return next == size_ ? Progress::kDone : next != before ? Progress::kMoved : Progress::kStalled;
        },
        [&](const u32* peer, Outcome& late) {
            if (!peer) {
                late.rank = next;
                return true;
            }
            return observe_header(&control_[*peer].headers[call % 2].call) != call;
        });
    if (entered.fault == Fault::kNone && !alike()) {
        entered = agree();
        if (entered.fault == Fault::kPeer) entered = given_up(std::move(entered));
    }
    return entered;
}

// Whether all have said the same, and nobody has failed: most calls need to know no more.
bool Communicator::alike() const {
    const CallHeader& mine = said(rank_);
    bool alike = !(mine.terms.flags & (kRefused | kSizeUnknown | kPairwise));
    for (u32 r = 0; r < size_ && alike; ++r) alike = said(r).signature == mine.signature && (r == rank_ || !failed(r));
    return alike;
}

// All ranks read the same lines, so all come to the same conclusion, but for a rank that fails meanwhile. One that
// failed in this call, after it had said its line, is noticed here, or once something from it is missing, or, in two
// rounds, at the end.
Outcome Communicator::agree() const {
    for (u32 r = 0; r < size_; ++r)
        if (r != rank_ && failed(r)) return {Fault::kPeer, u32(control_[r].culprit), control_[r].text};
    for (u32 r = 0; r < size_; ++r)
        if (said(r).terms.flags & kRefused) return {Fault::kRefused, r, said(r).text};
    u32 sized = 0;
    while (sized + 1 < size_ && said(sized).terms.flags & kSizeUnknown) ++sized;
    const Terms& first = said(0).terms;
    const Terms& size = said(sized).terms;
    constexpr u32 kUnits = kCounted | kPairwise;
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
    Outcome outcome{Fault::kMismatch, odd, {}};  // with `odd` 0, two ranks do not expect the same of each other
    for (u32 every = 0; every < size_; ++every) outcome.said.push_back(said(every));
    return outcome;
}

// Steps until done: spins, then yields, then sleeps; looks for faults after each sleep and now and then. Where other
// processes keep the cores, a yield may take as long as a nap, and many of them would hide a fault for seconds.
// `waits_for(peer, outcome)` says whether this rank waits for that rank (null: for any) and notes where.
template <class Step, class Blame> Outcome Communicator::drive(const Step& step, const Blame& waits_for) {
    Bell& bell = control_[rank_].bell;
    const Patience patience = settings_.patience;
    const u32 glances = u32(settings_.tunables.visits_between_looks);
    double since = 0;  // when this rank was first found waiting; 0: it is not
    u32 idle = 0;
    u64 yielding = 0;  // since when, in ticks
    std::vector<u32> gone;
    for (u32 visits = 1;; ++visits) {
        Progress progress = step();
        if (progress == Progress::kStalled && visits < glances) {
            if (idle >= patience.spins && settings_.patient != nullptr) settings_.patient();
            if (idle < patience.spins + patience.yields) {
                if (idle++ < patience.spins) {
                    relax();
                    continue;
                }
                if (idle == patience.spins + 1) yielding = clock_.ticks();
                ::sched_yield();
                if (clock_.ticks() - yielding > settings_.tunables.recheck_ticks)
                    idle = patience.spins + patience.yields;
                continue;
            }
            const u32 seen = lie_down(bell);
            progress = step();  // the second look, after the bell was raised (waiting.h)
            if (progress == Progress::kStalled) nap(bell, seen);
            if (progress == Progress::kStalled) visits = glances;
        }
        if (progress == Progress::kDone) return {};
        if (progress == Progress::kMoved) {
            idle = 0;
            since = 0;
        }
        if (visits < glances) continue;
        visits = 0;
        Outcome outcome = inspect(gone);
        if (outcome.fault != Fault::kNone) {
            const u32 culprit = outcome.rank;
            if (!waits_for(&culprit, outcome)) waits_for(nullptr, outcome);
            outcome.rank = culprit;
            return given_up(outcome);
        }
        // Those that are gone may have done their part before: what counts is whether this rank still needs one.
        if (!gone.empty()) progress = step();
        if (progress == Progress::kDone) return {};
        if (progress == Progress::kMoved) continue;
        for (const u32 peer : gone) {
            if (!waits_for(&peer, outcome)) continue;
            const u64 state = observe_state(&control_[peer].state);  // pairs with publish_state in `mark`
            outcome.fault = Fault::kPeer;
            outcome.rank = peer;
            outcome.text = state == kLeft ? "closed its communicator" : "has ended";
            return given_up(outcome);
        }
        const double now = seconds();
        if (since == 0) since = now;
        if (waits_for(nullptr, outcome)) {
            if (outcome.stalled) outcome.rank = outcome.stall.peer;
            __atomic_store_n(&control_[rank_].peer, outcome.rank, __ATOMIC_RELAXED);
            __atomic_store_n(&control_[rank_].looked, u64(now * 1e9), __ATOMIC_RELAXED);
        }
        if (now - since <= settings_.timeout) continue;
        outcome.fault = Fault::kTimeout;
        outcome.waited = now - since;
        outcome.rank = straggler(outcome.rank, now);
        return given_up(outcome);
    }
}

// Whose fault it is that this rank waits for `peer`: the first of a chain of waiting ranks that does not wait itself.
u32 Communicator::straggler(u32 peer, double now) const {
    u32 found = peer;
    for (u32 steps = 0; steps < size_; ++steps) {
        const double looked = 1e-9 * double(__atomic_load_n(&control_[found].looked, __ATOMIC_RELAXED));
        if (now - looked > settings_.timeout / 2) return found;
        found = u32(__atomic_load_n(&control_[found].peer, __ATOMIC_RELAXED));
    }
    return peer;
}

// Looks for faults: a signal, another rank that says it failed. Collects the ranks that are gone.
Outcome Communicator::inspect(std::vector<u32>& gone) {
    if (!deaf && settings_.interrupted != nullptr && settings_.interrupted())
        return {Fault::kInterrupted, rank_, "was interrupted"};
    if (dead()) return is_dead();
    gone.clear();
    for (u32 r = 0; r < size_; ++r) {
        if (r == rank_) continue;
        const bool ended = is_gone(r);
        // Looked at after its lifeline: a rank that says why it ends says it before it ends.
        if (failed(r)) return {Fault::kPeer, u32(control_[r].culprit), control_[r].text};
        const u64 state = observe_state(&control_[r].state);  // pairs with publish_state in `mark`
        if (ended || state == kLeft) gone.push_back(r);
    }
    return {};
}

// What this rank misses from another, it misses from this call on: whoever is still in an earlier one got there what it
// needs, or will find out by itself. An interruption is to end all, now.
Outcome Communicator::given_up(Outcome outcome) {
    const bool missed = outcome.fault == Fault::kPeer || outcome.fault == Fault::kTimeout;
    const std::string why = outcome.fault == Fault::kTimeout ? "was waited for in vain" : outcome.text;
    mark(missed ? kFailed : kAborted, missed ? outcome.rank : rank_, calls_, why);
    return outcome;
}

// Whether another rank's failure ends the call that this one is in.
bool Communicator::failed(u32 rank) const {
    const RankBlock& other = control_[rank];
    const u64 state = observe_state(&other.state);  // pairs with publish_state in `mark`
    return state == kAborted ||
           (state == kFailed && (calls_ - other.since) >> 63 == 0);  // the number of calls may wrap
}

void Communicator::leave() { mark(kLeft, rank_, 0, "closed"); }

void Communicator::fail(u32 culprit, const std::string& why) { mark(kAborted, culprit, 0, why); }

Outcome Communicator::is_dead() const { return {Fault::kDead, u32(control_[rank_].culprit), control_[rank_].text}; }

Outcome Communicator::ended(u32 rank) const {
    const RankBlock& other = control_[rank];
    const bool gone = rank != rank_ && is_gone(rank);    // looked at first, as in `inspect`
    const u64 state = observe_state(&other.state);  // pairs with publish_state in `mark`
    if (state == kLeft) return {Fault::kPeer, rank, "closed its communicator"};
    if (state != kRunning) return {Fault::kPeer, u32(other.culprit), other.text};
    if (gone) return {Fault::kPeer, rank, "has ended"};
    return {};
}

bool Communicator::is_gone(u32 rank) const {
    pollfd line{rank < lifelines_.size() ? lifelines_[rank] : -1, POLLIN, 0};
    return ::poll(&line, 1, 0) > 0;
}

bool Communicator::dead() const { return observe_state(&control_[rank_].state) != kRunning; }

void Communicator::mark(State state, u32 culprit, u64 since, const std::string& why) {
    if (marked_.test_and_set()) return;  // the first reason is the one that counts
    RankBlock& mine = control_[rank_];
    mine.culprit = culprit;
    mine.since = since;
    say(mine.text, why);
    publish_state(&mine.state, state);                  // pairs with observe_state, on every rank
    for (u32 r = 0; r < size_; ++r) ring(control_[r].bell);  // the own one for the other threads of this rank
    if (rank_ < lifelines_.size()) ::shutdown(lifelines_[rank_], SHUT_RDWR);  // for those who wait for it elsewhere
}

}  // namespace hocket
