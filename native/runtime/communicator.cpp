#include "runtime/communicator.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace hocket {
namespace {

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

// Whether ranks call an exchange of one name, some with the lengths of their units and some without, which then are
// equal. They may take different plans.
bool some_count(const std::vector<CallHeader>& said) {
    const auto name = [](const CallHeader& header) {
        const std::string_view text = header.text;
        return text.substr(0, text.find('\n'));
    };
    const Terms& first = said[0].terms;
    u32 counting = 0;
    for (const CallHeader& header : said) {
        const Terms& terms = header.terms;
        if (name(header) != name(said[0]) || terms.type != first.type || terms.element != first.element ||
            (terms.flags != 0 && terms.flags != kUnits))
            return false;
        counting += terms.flags == kUnits;
    }
    return counting != 0 && counting != said.size();
}

// The units of a call that gave none, all of one length.
Units equal_units(const PlanHeader& header, const Call& call) {
    Units units;
    const u64 blocks[] = {header.input_blocks, header.output_blocks};
    for (const Place place : {kInput, kOutput}) {
        std::string lengths;
        for (u64 block = 0; block <= blocks[place]; ++block) {
            units.bounds[place].push_back(block * call.n * type_bytes(call.type));
            if (block != 0) lengths += (block == 1 ? "" : ", ") + std::to_string(call.n);
        }
        units.text += (place == kInput ? "[[" : ", [") + lengths + (place == kInput ? "]" : "]]");
    }
    return units;
}

const char* result_of(const Call& call) { return call.output != nullptr ? call.output : call.input; }

constexpr u64 kMostMessage = 1 << 30;  // a wire may count bytes with an int

// What follows from what is tuned, and from where ranks are. On several nodes there are no more slots than needed: a
// sender may be that many messages ahead without a credit.
Settings completed(Settings settings) {
    Tunables& tuned = settings.tunables;
    settings.visits_between_looks = tuned.visits_between_looks;
    settings.recheck_ticks = tuned.recheck_ticks;
    settings.progress_nap_nanoseconds = tuned.progress_nap_nanoseconds;
    settings.others = settings.network;
    if (settings.network == nullptr) return settings;
    tuned.lent_tile_bytes = std::min(tuned.lent_tile_bytes, kMostMessage);
    tuned.rotated_bytes = 0;
    return settings;
}

}  // namespace

// A call from when it is made until it ends.
struct Communicator::CallState {
    CallState(Plan& plan, const Call& call)
        : plan(plan),
          call(call),
          terms{plan.digest(), call.n, call.tile, 0, call.type, call.op, call.size_known ? 0u : u32(kSizeUnknown)},
          text(&plan.name()),
          author(plan.number()) {
        candidates[kBuffered] = {{}, plan.view().lends ? nullptr : &plan, call.input, call.output, nullptr};
        for (const Variant other : kZeroCopy) candidates[other].plan = nullptr;
    }

    u64 size_bit() const { return u64(1) << std::bit_width(terms.n); }
    Candidate& buffered() { return candidates[kBuffered]; }
    const Candidate& chosen() const { return candidates[selected.variant]; }
    bool pairwise() const { return terms.flags & kPairwise; }
    bool size_known() const { return !(terms.flags & (kSizeUnknown | kPairwise)); }  // before others have said theirs
    Statement statement() const {
        return {terms, *text, author, tiny ? nullptr : &told, call.timeout, eager_bytes, entered};
    }

    Plan& plan;
    const Call& call;
    Terms terms;  // once all have entered, n and the type as others say, where this rank has no data
    u64 eager_bytes = 0;
    const std::string* text;
    u64 author;
    Candidates candidates;
    Buffer buffers[3];         // of an execution
    bool tiny = false;         // its messages may be where the header would say what else it can run
    BufferDescription told{};  // to the others
    ResidencyProbe probe{};
    u64 entered = 0, begun = 0;  // when it enters, and from when on it waits for nobody to, in ticks, if it is watched
    Traffic sent{};              // eagerly
    Selection selected{Path::kFifo, kBuffered};
};

// An execution of the chosen plan, and what its threads need to know.
template <class Event> struct Communicator::Run {
    const CallState& state;
    Execution<Cpu, End> execution;
    std::optional<u64> attached_since;  // buffers of others; none: there are none
    Event event;
    u32 threads = 1;
    bool streams = false;
    u64 copy_ahead_bytes = 0;
};

Communicator::Communicator(u32 rank, u32 size, Memory& memory, std::vector<int> lifelines, Settings settings)
    : memory_(memory),
      settings_(completed(settings)),
      control_(rank, size, memory.control(), std::move(lifelines), settings_, settings.first),
      distances_(size),
      eager_(control_, memory, settings_.tunables),
      fifo_(memory, settings.network, settings_.tunables),
      zero_copy_(control_, memory, fifo_, settings.cma_use, settings.threads),
      outcomes_(settings.threads),
      moved_(settings.threads) {}

Communicator::~Communicator() = default;

Outcome Communicator::run(Plan& plan, const Call& call) {
    Outcome outcome = recorded(plan.number(), [&](auto event) { return carry_out(plan, call, event); });
    if (outcome.fault == Fault::kMismatch && some_count(outcome.why().said)) outcome = run_counted(plan, call);
    return outcome;
}

// The same once more, of all ranks: now each gives the lengths of its units.
Outcome Communicator::run_counted(Plan& plan, Call call) {
    if (call.units != nullptr) return run(plan, call);
    Plan& with_units = call.counted != nullptr ? *call.counted : plan;
    const Units equal = equal_units(with_units.header(), call);
    call.units = &equal;
    call.watch = nullptr;  // what it took, and waited for, before
    call.offer = nullptr;
    call.tile = 0;
    return run(with_units, call);
}

Outlook Communicator::outlook(const Plan& plan, u64 n, u32 type, u64 tile, bool input, bool output) const {
    const PlanHeader& h = plan.header();
    const Settings& s = settings_;
    const Shape shape =
        settle(h, n, type, tile, most_eager(h.ranks, false, s.network != nullptr, tile != 0), s.tunables);
    return {shape,
            select(h, shape, 0, 0).path != Path::kFifo,
            attached_bytes(plan),
            touched_bytes(plan.view(), shape, input, output),
            streams_for(plan.view(), shape, input, output, s.cache_bytes, false, 0, s.tunables),
            threads_for(h, shape.geometry, s.threads, s.team_bytes)};
}

Outcome Communicator::barrier(double timeout) {
    return recorded(ControlPlane::kBarrier, [&](auto) { return control_.barrier(timeout); });
}

Outcome Communicator::exchange(const std::string& word, u64 digest) {
    return recorded(ControlPlane::kNobody, [&](auto) { return control_.exchange(word, digest); });
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
    event.number = control_.call();
    event.fault = u32(outcome.fault);
    event.end = recorder->clock.ticks();
    if (event.agreed == 0 && outcome.fault == Fault::kNone) event.agreed = event.end;
    recorder->calls.record(event);
    return outcome;
}

// Flattened: the stages of a short call share their state in registers.
template <class Event> [[gnu::flatten]] Outcome Communicator::carry_out(Plan& plan, const Call& call, Event event) {
    if (control_.dead()) return control_.is_dead();
    eager_.prefetch_line(plan);
    CallState state(plan, call);
    if (call.watch != nullptr && call.watch->begun == 0) call.watch->begun = control_.clock().ticks();
    state_terms(state);
    if (state.size_known())
        if (const int failed = prepare_all(state)) return refuse_for_memory(failed);
    offer(state);
    if (state.buffered().eager() && state.told.variants == 0) send_eagerly(state);

    // Agree.
    if (call.watch != nullptr) state.entered = control_.clock().ticks();
    Outcome entered = control_.enter(state.statement(), [&] { meanwhile(state); });
    if (entered.fault != Fault::kNone) return zero_copy_.withdraw(std::move(entered), state.told);
    if (call.watch != nullptr) state.begun = control_.entered_at();
    return carry_on(state, event);
}

// All have entered the call and agree.
template <class Event> Outcome Communicator::carry_on(CallState& state, Event event) {
    if (!state.size_known() && !learn_size(state)) return {};  // nobody has data

    // Select.
    if (const int failed = select_path(state))
        return zero_copy_.withdraw(give_up_for("slots and scratch", failed), state.told);
    if (!state.tiny && touches(control_.call())) look_at_others(state);
    if (const int failed = open_path(state))
        return zero_copy_.withdraw(give_up_for("the arrays of others", failed), state.told);
    return execute_and_finish(state, event);
}

// Here and below, a function has one outcome, which it returns where it lies: a copy of what has just been stored in
// parts takes a short call several nanoseconds.
template <class Event> Outcome Communicator::execute_and_finish(CallState& state, Event event) {
    const FifoPath::Closing closing{fifo_};
    Outcome outcome = execute(state, event);
    outcome.variant = state.selected.variant;
    if (outcome.fault != Fault::kNone) {
        outcome = zero_copy_.withdraw(std::move(outcome), state.told);
        if (!fifo_.close()) return outcome;
        settings_.network->hold(std::move(scratch_));
        scratch_bytes_ = 0;
        outcome.exposed = true;
        return outcome;
    }
    if (state.call.finish.result != nullptr) finish(state);
    if (Watch* const watch = state.call.watch)
        watch->took = state.entered - watch->begun + control_.clock().ticks() - state.begun;
    return outcome;
}

bool Communicator::post(Plan& plan, const Call& call) {
    if (settings_.recorder != nullptr || control_.dead() || call.counted != nullptr) return false;
    if (settings_.network != nullptr) return false;  // headers for other nodes have to be brought there
    auto state = std::make_unique<CallState>(plan, call);
    const u64 begun = call.watch != nullptr ? control_.clock().ticks() : 0;
    state_terms(*state);
    if (!state->size_known() || prepare_all(*state) != 0 || !state->tiny) return false;
    offer(*state);
    send_eagerly(*state);
    if (control_.dead()) return false;
    if (call.watch != nullptr) {
        call.watch->begun = begun;
        state->entered = control_.clock().ticks();
    }
    control_.post(state->statement());
    posted_ = std::move(state);
    return true;
}

Outcome Communicator::complete() {
    const std::unique_ptr<CallState> state = std::move(posted_);
    Outcome entered = control_.dead() && !control_.all_entered() ? control_.is_dead() : control_.await_all();
    if (state->call.watch != nullptr) state->begun = control_.clock().ticks();  // it may have rested since all entered
    return entered.fault == Fault::kNone ? carry_on(*state, nullptr) : entered;
}

// What this rank says of the call to the others.
void Communicator::state_terms(CallState& state) {
    const Call& call = state.call;
    if (call.element != nullptr || call.units != nullptr) {
        const std::string_view element = call.element != nullptr ? *call.element : std::string_view();
        const std::string_view units = call.units != nullptr ? call.units->text : std::string_view();
        const Plan::Details& said = state.plan.details(element, units, *this);
        if (call.element != nullptr) state.terms.element = said.digest;
        state.text = &said.text;
        state.author = said.author;
    }
    if (call.units != nullptr) {
        state.terms.counts = call.units->digest ? *call.units->digest : difference(rank(), *call.units);
        state.terms.flags |= kCounted | (call.units->digest ? 0u : kPairwise);
    }
    if (call.offer != nullptr && settings_.network == nullptr)
        for (const Variant variant : kZeroCopy)
            state.candidates[variant] = {
                {}, call.offer->plans[variant], call.offer->input, call.offer->output, nullptr};
}

// Settles how each candidate would run, and sees to memory. Returns 0 or an errno. A tiny call has but one.
int Communicator::prepare_all(CallState& state) {
    for (Candidate& candidate : state.candidates) {
        if (state.tiny) candidate.plan = nullptr;
        if (candidate.plan == nullptr) continue;
        const u64 most = most_eager(size(), state.pairwise(), settings_.network != nullptr, state.call.tile != 0);
        if (const int failed = prepare(state, candidate, most)) return failed;
        state.tiny = state.buffered().tiny();
    }
    return 0;
}

// What has been reserved stays, also where more cannot be had, so there is nothing to see to for a plan that runs as it
// ran last.
int Communicator::prepare(CallState& state, Candidate& candidate, u64 most_eager) {
    Plan& plan = *candidate.plan;
    const u64 n = state.terms.n, tile = &plan == &state.plan ? state.call.tile : 0;  // of no other in its place
    const u32 type = state.terms.type;
    candidate.kernel = plan.view().combines ? kernels().types[type].reduce[state.call.op] : kernels().move;
    Plan::Latest& latest = plan.latest;
    Shape& shape = candidate;
    if (latest.n == n && latest.type == type && latest.tile == tile && latest.most_eager == most_eager) {
        shape = latest.shape;
        return 0;
    }
    shape = settle(plan.header(), n, type, tile, most_eager, settings_.tunables);
    if (const int failed = eager_.reserve(candidate)) return failed;
    if (const int failed = fifo_.reserve(candidate)) return failed;
    if (const int failed = reserve_scratch(candidate)) return failed;
    latest.n = n;
    latest.tile = tile;
    latest.type = type;
    latest.most_eager = most_eager;
    latest.shape = shape;
    return 0;
}

int Communicator::reserve_scratch(const Candidate& candidate) {
    u64 bytes = 0;  // a chunk is a multiple of kAlign
    if (__builtin_mul_overflow(u64(candidate.plan->header().scratch), candidate.geometry.chunk, &bytes)) return ENOMEM;
    if (bytes <= scratch_bytes_) return 0;
    auto* more = static_cast<char*>(std::aligned_alloc(kAlign, bytes));
    if (more == nullptr) return ENOMEM;
    scratch_.reset(more);
    scratch_bytes_ = bytes;
    return 0;
}

// Decides what to tell the others of this rank's buffers, and what to look at until they have entered the call.
void Communicator::offer(CallState& state) {
    if (state.tiny) return;
    zero_copy_.describe(state.candidates, state.told);
    const bool is_private = state.told.is_private;
    if (state.size_known()) plan_probe(state, is_private);
    if (is_private) offer_private(state);
}

// Whether it offers private ones. At those that it offers although they were in no cache it looks seldom: that matters
// for the next calls only, and costs misses. Apart, so that short calls stay small.
[[gnu::noinline]] void Communicator::offer_private(CallState& state) {
    const Candidate& offered = state.candidates[preferred(state.told.variants)];
    const bool far = !state.call.fresh && (state.plan.latest.far & state.size_bit()) != 0;
    const auto is_long_enough = [&](bool huge) {
        return state.probe.larger() >= attached_bytes(state.plan, far, huge);
    };
    const bool can_offer = is_long_enough(true) && zero_copy_.reachable(state.plan, offered);
    const bool in_small_pages = can_offer && !is_long_enough(false) && !zero_copy_.in_huge_pages(state.plan, offered);
    const bool offers = can_offer && (!in_small_pages || state.plan.header().exchanges != 0);
    if (!offers || !zero_copy_.is_accessible()) {  // asked last: that is a system call
        state.told = {};
        return;
    }
    state.told.in_small_pages = in_small_pages;
    if (far && state.probe.is_far != nullptr && !looks_again(control_.call())) state.probe.take_for_far();
}

u64 Communicator::attached_bytes(const Plan& plan, bool far, bool huge) const {
    if (settings_.cma_use == CmaUse::kAlways) return 0;
    return least_attached(plan.header(), far, huge, settings_.crowded, some_apart_, settings_.tunables);
}

// What there is to look at. Nobody looks where no plan has a result that would be stored non-temporally, nor at an
// output that a look would give a page of zeroes, nor at a result that is in no cache only because it was stored so, if
// there is nothing else: in a loop on one array, that would go on for ever. Private buffers that may be offered in the
// next call are looked at, too.
void Communicator::plan_probe(CallState& state, bool is_private) const {
    const Call& call = state.call;
    const PlanHeader& h = state.plan.header();
    ResidencyProbe& found = state.probe;
    const auto bytes = [&](Place place, u64 blocks) {
        return call.units ? call.units->bounds[place].back() : blocks * call.n * type_bytes(call.type);
    };
    if (call.input != nullptr) found.input = {call.input, bytes(kInput, h.input_blocks)};
    if (call.output != nullptr) found.output = {call.output, bytes(kOutput, h.output_blocks)};
    const bool alone = call.input == nullptr || call.output == nullptr;
    if (call.fresh || (alone && result_of(call) == state.plan.latest.streamed)) return;
    if (is_private && settings_.cma_use == CmaUse::kWhereFaster && found.larger() >= attached_bytes(state.plan))
        found.is_far = settings_.is_far;
    if (found.larger() < settings_.tunables.far_past_bytes) return;
    for (u32 variant = 0; variant < kVariants; ++variant) {
        const Candidate& candidate = state.candidates[variant];
        if (candidate.plan == nullptr || candidate.eager() || (variant != kBuffered && is_private)) continue;
        if (candidate.plan->view().has_last) found.is_far = settings_.is_far;
    }
}

// Before the call is entered. What is to be copied into a buffer is still where it comes from.
void Communicator::send_eagerly(CallState& state) {
    const Call& call = state.call;
    const Candidate& candidate = state.buffered();
    eager_.open(candidate, control_.call() + 1);
    const auto shift = call.initial_bytes != 0 ? call.initial - call.initial_to : 0;
    char* const input = call.input ? call.input + shift : nullptr;
    char* const output = call.input ? call.output : call.output + shift;
    Cpu cpu{candidate.kernel, control_.blocks(), rank(), false, false};
    cpu.others = apart();
    cpu.apart_copied_bytes = settings_.tunables.apart_message_bytes;
    cpu.apart_combined_bytes = settings_.tunables.apart_combined_bytes;
    execution(state, candidate, input, output).send(cpu, state.plan.room(0, false));
    state.sent = cpu.moved;
    if (settings_.network != nullptr) state.eager_bytes = eager_.bytes(candidate);
}

// While the others are on their way, this rank looks whether its buffers are in a cache, and prefetches the first lines
// that it will store to: of its output, unless they are in none or others may store there, and of its next messages,
// unless these may be stored non-temporally; and its own block of an AllToAll, which it has not read yet. Of brief
// messages it prefetches those that it reads.
void Communicator::meanwhile(CallState& state) const {
    state.probe.look(rank(), size(), settings_.tunables);
    if (state.told.variants != 0 || state.probe.far) return;
    const Candidate& buffered = state.buffered();
    const bool is_brief = eager_.is_brief(buffered);
    const bool streams = some_apart_ && buffered.geometry.tile >= settings_.tunables.apart_message_bytes;
    const std::span<const char> next = is_brief || streams ? std::span<const char>{} : eager_.next_messages(buffered);
    for (const std::span<const char> soon : {state.probe.output, next}) {
        const u64 wanted = std::min<u64>(soon.size(), settings_.tunables.waiting_prefetch_bytes);
        for (u64 at = 0; at < wanted; at += kCacheLine) __builtin_prefetch(&soon[at], 1);
    }
    const bool plain = state.call.units == nullptr && state.call.initial_bytes == 0;
    if (!state.probe.input.empty() && buffered.eager() && buffered.plan->header().exchanges != 0 && plain) {
        const u64 unit = buffered.geometry.unit, wanted = std::min(unit, settings_.tunables.argument_prefetch_bytes);
        for (u64 at = 0; at < wanted; at += kCacheLine) __builtin_prefetch(buffered.input + rank() * unit + at);
    }
    if (is_brief) eager_.await_brief(buffered);
}

// All ranks are in the call: the line was stored, and nobody stores it again before this one has left. Nobody looks
// where all messages are so short that it does not matter. Apart, so that short calls stay small.
[[gnu::noinline]] void Communicator::look_at_others(const CallState& state) {
    const Tunables& tuned = settings_.tunables;
    if (settings_.is_far == nullptr || tuned.apart_ticks == kNeverTicks) return;
    if (size() == 1 || settings_.network != nullptr) return;
    const Candidate& buffered = state.candidates[kBuffered];  // also where all attach, for the calls to come
    const bool sends = buffered.plan != nullptr && buffered.plan->header().widest != 0;
    if (!sends || buffered.geometry.tile < tuned.apart_message_bytes) return;
    const u32 other = Distance::whose(looks_++, rank(), size());
    const auto* const line = reinterpret_cast<const char*>(&control_.blocks()[other].touched);
    distances_[other].found(settings_.is_far(line, tuned.apart_ticks));
    some_apart_ = std::ranges::any_of(distances_, &Distance::far);
}

// What the others say of the size. Returns whether anybody has data.
bool Communicator::learn_size(CallState& state) const {
    bool known = false;
    state.terms.n = 0;
    for (u32 r = 0; r < size(); ++r) {
        const Terms& terms = control_.said(r).terms;
        if (terms.flags & kSizeUnknown) continue;
        known = true;
        state.terms.type = terms.type;
        state.terms.n = std::max(state.terms.n, terms.n);
    }
    return known;
}

// How many ranks say so of their buffers. Apart, so that short calls stay small.
[[gnu::noinline]] u32 Communicator::ranks_in_small_pages() const {
    u32 found = 0;
    for (u32 r = 0; r < size(); ++r) found += control_.said(r).buffers.in_small_pages ? 1 : 0;
    return found;
}

// Of what all ranks have said. A tiny call says nothing of buffers. One that was settled to be eager, of which a rank
// has sent nothing, is settled again. Returns 0, or an errno where that takes memory.
int Communicator::select_path(CallState& state) {
    if (!state.size_known())
        if (const int failed = prepare_all(state)) return failed;
    u32 all = state.tiny ? 0 : ~u32(0), any = 0;
    for (u32 r = 0; r < size() && !state.tiny; ++r) {
        const u32 offered = control_.said(r).buffers.variants;
        all &= offered;
        any |= offered;
    }
    if (all != 0 && !are_attached(ranks_in_small_pages(), size())) all = 0;
    state.selected = select(state.plan.header(), state.buffered(), all, any);
    const bool again = state.selected.path == Path::kFifo && state.buffered().eager();
    return again ? prepare(state, state.buffered(), 0) : 0;
}

// Returns 0, or an errno where the buffers of others cannot be mapped.
int Communicator::open_path(CallState& state) {
    const Candidate& chosen = state.chosen();
    if (state.selected.path == Path::kZeroCopy) return zero_copy_.open(chosen, state.buffers);
    if (state.selected.path != Path::kFifo) {
        if (!state.size_known()) eager_.open(chosen, control_.call());  // it had nothing to send
        add(0, state.sent);
    } else {
        fifo_.open(chosen, state.buffers);
    }
    if (state.call.initial_bytes != 0) copy(state.call.initial_to, state.call.initial, state.call.initial_bytes);
    return 0;
}

template <class Event> Outcome Communicator::execute(CallState& state, Event event) {
    const Candidate& chosen = state.chosen();
    const bool zero_copy = state.selected.path == Path::kZeroCopy;
    Run<Event> run{state, execution(state, chosen, chosen.input, chosen.output),
                   zero_copy ? zero_copy_.attached_since(*chosen.plan) : std::nullopt, event};
    run.threads = threads_for(chosen.plan->header(), chosen.geometry, settings_.threads, settings_.team_bytes);
    if (run.threads > 1) run.threads = std::min(run.threads, team_.grow(run.threads));
    const bool attached = run.attached_since.has_value();  // there it is mostly the kernel that stores, through caches
    run.streams = streams_for(chosen.plan->view(), chosen, chosen.input, chosen.output, settings_.cache_bytes,
                              state.probe.far && !attached, state.probe.larger(), settings_.tunables);
    run.copy_ahead_bytes =
        copy_ahead_for(chosen.plan->view(), state.selected.path, state.probe.near(), some_apart_, settings_.tunables);
    Plan::Latest& latest = state.plan.latest;
    if (state.probe.is_far != nullptr)
        latest.far = state.probe.far ? latest.far | state.size_bit() : latest.far & ~state.size_bit();
    latest.streamed = !attached && run.streams && chosen.plan->view().has_last ? result_of(state.call) : nullptr;
    if constexpr (!std::is_null_pointer_v<Event>) {
        event->plan = chosen.plan->number();
        event->agreed = settings_.recorder->clock.ticks();
        event->unit = chosen.geometry.unit;
        event->tile = chosen.geometry.tile;
        event->tiles = chosen.geometry.tiles;
        event->threads = run.threads;
        event->rounds = u32(chosen.rounds);
        event->streams = run.streams;
    }
    Outcome found = run.threads == 1 ? work(run, 0) : work_together(run);
    if (found.fault != Fault::kNone) return found;
    if (zero_copy) found = zero_copy_.finish(chosen, run.execution);
    else if (settings_.network != nullptr) [[unlikely]] found = fifo_.finish(control_);
    return found;
}

// One thread's share of the thread blocks.
template <class Event> Outcome Communicator::work(Run<Event>& run, u32 thread) {
    const Candidate& chosen = run.state.chosen();
    const u64 blocks = chosen.plan->header().blocks;
    const u32 begin = u32(blocks * thread / run.threads), end = u32(blocks * (thread + 1) / run.threads);
    const Room room = chosen.plan->room(thread, run.attached_since.has_value());
    CmaCopies* const copies = run.attached_since ? zero_copy_.copies(thread) : nullptr;
    u64 looked = run.attached_since.value_or(0);
    auto device = [&] {
        const Cpu cpu{.kernel = chosen.kernel,
                      .control = control_.blocks(),
                      .rank = rank(),
                      .together = run.threads > 1,
                      .streams = run.streams,
                      .copies = copies,
                      .scale = scale(run.state),
                      .others = apart(),
                      .apart_copied_bytes = settings_.tunables.apart_message_bytes,
                      .apart_combined_bytes = settings_.tunables.apart_combined_bytes,
                      .ahead_bytes = settings_.tunables.prefetch_ahead_bytes,
                      .copy_ahead_bytes = run.copy_ahead_bytes};
        if constexpr (std::is_null_pointer_v<Event>) return cpu;
        else
            return WatchedCpu{cpu,
                              settings_.recorder->clock,
                              settings_.recorder->steps[thread],
                              {.call = control_.call(), .end = run.event->agreed},
                              thread != 0};
    }();
    Outcome found = control_.drive(
        [&] {
            if (copies != nullptr) zero_copy_.watch(*chosen.plan, thread, looked);
            const Progress progress = run.execution.advance(device, room, begin, end);
            if (progress == Progress::kStalled) device.stalls();
            return progress;
        },
        [&](const u32* peer, Outcome& outcome) -> const u32* {
            for (u32 b = begin; b < end; ++b) {
                Stall stall{};
                if (!run.execution.stalled(b, stall) || !stall.remote) continue;
                if (peer && stall.peer != *peer) continue;
                return &outcome.more().stall.emplace(stall).peer;
            }
            return nullptr;
        });
    device.drain();
    add(thread, device.moved);
    if (copies != nullptr && found.fault == Fault::kNone && copies->error() != 0) found = zero_copy_.failure(*copies);
    return found;
}

template <class Event> Outcome Communicator::work_together(Run<Event>& run) {
    const auto interrupted = [&] {  // by what only the caller's thread is told of, which may have done its share
        if (outcomes_[0].fault == Fault::kNone) outcomes_[0] = control_.interrupted();
    };
    team_.together(
        [&](u32 thread) {
            if (thread < run.threads) outcomes_[thread] = work(run, thread);
        },
        interrupted);
    // One that fails ends the communicator, and so the others: the first cause is the one that is not "dead before".
    Outcome* cause = &outcomes_[0];
    for (u32 t = 1; t < run.threads; ++t)
        if (cause->fault == Fault::kNone || (cause->fault == Fault::kDead && outcomes_[t].fault != Fault::kNone))
            cause = &outcomes_[t];
    return std::move(*cause);
}

Execution<Cpu, End> Communicator::execution(CallState& state, const Candidate& candidate, char* input,
                                            char* output) const {
    const Units* const units = state.call.units;
    const auto bounds = [&](Place place) { return units ? units->bounds[place].data() : nullptr; };
    Plan& plan = *candidate.plan;
    const PlanHeader& h = plan.header();
    const Geometry& geometry = candidate.geometry;
    const auto set = [&](Place place, char* base, u64 unit, u32 chunks, const u64* of) {
        Buffer& buffer = state.buffers[place];  // member by member: a copy of the whole would wait for these stores
        buffer.base = base;
        buffer.unit = unit;
        buffer.chunks = chunks;
        buffer.bounds = of;
    };
    set(kInput, input, geometry.unit, h.chunks, bounds(kInput));
    set(kOutput, output, geometry.unit, h.chunks, bounds(kOutput));
    set(kScratch, scratch_.get(), h.scratch * geometry.chunk, h.scratch, nullptr);
    return Execution<Cpu, End>(plan.view_in(candidate), geometry, state.buffers, zero_copy_.peers(),
                               plan.cursors().data(), plan.ends().data(), candidate.rounds);
}

// What the plan's steps that are `whole` scale by; null for nothing.
const Scale* Communicator::scale(const CallState& state) const {
    return state.chosen().plan->header().averages != 0 ? state.call.scale : nullptr;
}

void Communicator::finish(const CallState& state) const {
    const Finish& left = state.call.finish;
    char* const result = left.result;
    if (left.taken != nullptr && state.selected.variant == kBuffered) copy(result, left.taken, left.bytes);
    if (state.call.scale != nullptr && scale(state) == nullptr)
        kernels().types[state.terms.type].reduce[kAverage](&result, 1, &result, 1, left.bytes,
                                                           {.scale = state.call.scale});
}

// This rank cannot take part, and says so to the others.
Outcome Communicator::refuse_for_memory(int error) {
    Outcome outcome = control_.refuse(std::string("it has no memory for slots and scratch: ") + std::strerror(error));
    if (outcome.fault == Fault::kRefused) outcome.fault = Fault::kMemory;
    return outcome;
}

Outcome Communicator::give_up_for(const char* missing, int error) {
    return control_.give_up(
        {Fault::kPeer, rank(), std::string("has no memory for ") + missing + ": " + std::strerror(error)});
}

// A line has one writer at a time: the threads of one call have each their own, and calls do not overlap. Relaxed: a
// reader elsewhere gets a number, and nothing else by it.
void Communicator::add(u32 thread, const Traffic& moved) {
    Traffic& sum = moved_[thread];
    __atomic_store_n(&sum.loaded, sum.loaded + moved.loaded, __ATOMIC_RELAXED);  // pairs with `traffic`
    __atomic_store_n(&sum.stored, sum.stored + moved.stored, __ATOMIC_RELAXED);  // pairs with `traffic`
}

Traffic Communicator::traffic() const {
    Traffic all{};
    for (const Moved& moved : moved_) {
        all.loaded += __atomic_load_n(&moved.loaded, __ATOMIC_RELAXED);  // pairs with `add`
        all.stored += __atomic_load_n(&moved.stored, __ATOMIC_RELAXED);  // pairs with `add`
    }
    return all;
}

}  // namespace hocket
