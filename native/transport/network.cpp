#include "transport/network.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string>

#include "device/atomics.h"

namespace hocket {
namespace {

constexpr u32 kMostTags = 1 << 15;                                                            // MPI 4.1, section 8.1.2
enum Tag : u32 { kHeaderTag = 0, kNoticeTag = 1, kSlotTag = 2, kCreditTag = kMostTags / 2 };  // + the channel
constexpr u32 kLooks = 16;  // after which a rank listens for notices: they are rare, and to look for one takes 0.1 us
char nothing;               // that messages of no bytes consist of

// What a notice says besides the states of a RankBlock: that the process has ended; that it waits for the culprit in
// call `since`, and asks whom others wait for if it is late.
constexpr u64 kGone = kRunning, kWaits = kAborted + 1, kIsLate = kAborted + 2;

constexpr double kLeaving = 1;     // seconds that a rank which leaves tries to tell others for
constexpr double kFarewell = 0.1;  // seconds that it then waits for theirs

u64 counted(const u64* counter) { return __atomic_load_n(counter, __ATOMIC_RELAXED); }  // of this thread's own

}  // namespace

// Tiles of a chunk follow each other.
std::span<char> Direct::message(u64 number) const {
    const Buffer& buffer = buffers[lies->place];
    const auto tile = [&](u64 t) { return piece_of(*geometry, buffer, lies->unit, lies->position, 0, t); };
    const u64 first = number * tiles_a_message;
    const Piece begin = tile(first), end = tile(std::min(first + tiles_a_message, geometry->tiles) - 1);
    return {buffer.base + begin.offset, end.offset + end.bytes - begin.offset};
}

// Where a message lies: one that is to be received may be shorter.
std::span<char> Network::Line::message(u64 number) const {
    if (direct) return direct->message(number);
    return {slots() + place(number) * place_bytes, sends ? lengths[place(number)] : place_bytes};
}

// How many messages are complete, all tiles of which a counter counts.
u64 Network::Line::messages_of(u64 counter) const {
    const u64 tiles = counter - begun;
    if (!direct) return tiles;
    return tiles == direct->geometry->tiles ? last : tiles / direct->tiles_a_message;
}

u64 Network::Line::counter_of(u64 messages) const {
    return begun + (direct ? std::min(messages * direct->tiles_a_message, direct->geometry->tiles) : messages);
}

Network::Network(u32 rank, std::vector<u32> nodes, RankBlock* blocks, Wire wire)
    : rank_(rank),
      nodes_(std::move(nodes)),
      area_bytes_(eager_area_bytes(u32(nodes_.size()), true)),
      blocks_(blocks),
      wire_(wire) {
    for (u32 r = 0; r < nodes_.size(); ++r) {
        members_.resize(std::max<u64>(members_.size(), nodes_[r] + 1));
        members_[nodes_[r]].push_back(r);
    }
    while (other_ + 1 < nodes_.size() && !is_remote(other_)) ++other_;
}

Network::~Network() {
    finish();
    for (auto& [key, line] : lines_)
        for (Parcel& parcel : line->parcels) drop(parcel);
    for (auto& [key, line] : lines_) drop(line->credit);
    for (std::deque<Parcel>* const parcels : {&exchange_.sent, &exchange_.received})
        for (Parcel& parcel : *parcels) drop(parcel);
    drop(hearing_);
    for (const std::unique_ptr<Told>& told : told_)
        for (Parcel& parcel : told->parcels) drop(parcel);
}

void Network::finish() {
    tell();
    for (const double since = seconds(); !told_.empty() && !broken_ && seconds() - since < kLeaving; ::sched_yield()) {
        progress();
        forget_told();
    }
    const u64 state = observe_state(&blocks_[rank_].state);  // pairs with publish_state in ControlPlane::mark
    if (state != kLeft || parted_) return;
    parted_ = true;
    const u64 others = u64(std::count_if(nodes_.begin(), nodes_.end(), [&](u32 n) { return n != nodes_[rank_]; }));
    for (const double since = seconds(); left_ < others && !broken_ && seconds() - since < kFarewell; ::sched_yield())
        hear();
}

Window* Network::window(u32 peer, u32 channel, bool sends) {
    if (channel >= kCreditTag - kSlotTag) return nullptr;
    std::unique_ptr<Line>& line = lines_[u64(peer) << 32 | u64(channel) << 1 | u64(sends)];
    if (line == nullptr) {
        line = std::make_unique<Line>();
        line->peer = peer;
        line->channel = channel;
        line->sends = sends;
    }
    return line.get();
}

// Between calls, when nothing is on its way.
int Network::reserve(Window* window, u64 bytes) {
    Line& line = *static_cast<Line*>(window);
    const u64 whole = (kPage + bytes + kPage - 1) / kPage * kPage;
    auto* const memory = static_cast<char*>(std::aligned_alloc(kPage, whole));
    if (memory == nullptr) return ENOMEM;
    line.memory.reset(memory);
    line.counters = new (memory) Counters{};
    line.bytes = bytes;
    return 0;
}

u64* Network::open(Window* window, u64 slots, u64 slot_bytes, u64 messages) {
    Line& line = *static_cast<Line*>(window);
    line.places = slots;
    line.place_bytes = slot_bytes;
    line.begun = line.counters->filled.count;
    line.given = line.done = 0;
    line.last = messages;
    line.allowed = slots;
    line.direct.reset();
    line.parcels.resize(slots);
    line.lengths.resize(slots);
    open_.push_back(&line);
    return line.sends ? line.lengths.data() : nullptr;
}

void Network::open(Window* window, u64 slots, const Direct& direct) {
    open(window, slots, 0, direct.messages());
    static_cast<Line*>(window)->direct = direct;
}

bool Network::close() {
    const bool exposed = std::ranges::any_of(
        open_, [](const Line* line) { return line->direct && std::ranges::any_of(line->parcels, &Parcel::travels); });
    open_.clear();
    return exposed;
}

u64 Network::outstanding() const {
    u64 messages = 0;
    for (const Line* const line : open_)
        if (line->sends) messages += line->last - line->done;
    return messages;
}

const u32* Network::awaited(const u32* only) const {
    for (const Line* const line : open_)
        if (line->sends && line->done != line->last && (only == nullptr || line->peer == *only)) return &line->peer;
    return nullptr;
}

void Network::progress() {
    tell();
    if (broken_) return;
    exchange();
    for (Line* const line : open_)
        if (line->done != line->last) move(*line);
    if (++looks_ % kLooks == 0) hear();
}

bool Network::is_busy() const {
    const auto travels = [](const Parcel& parcel) { return parcel.travels; };
    const auto is_on_its_way = [&](const auto& entry) {
        return std::any_of(entry.second->parcels.begin(), entry.second->parcels.end(), travels);
    };
    const auto is_told = [&](const auto& told) {
        return std::any_of(told->parcels.begin(), told->parcels.end(), travels);
    };
    return hearing_.travels || std::ranges::any_of(exchange_.sent, travels) ||
           std::ranges::any_of(exchange_.received, travels) || std::any_of(told_.begin(), told_.end(), is_told) ||
           std::any_of(lines_.begin(), lines_.end(), is_on_its_way);
}

// The leader stores the headers of other nodes.
bool Network::awaits(u32 rank, u64 call) const {
    if (rank == rank_ || rank != members_[nodes_[rank_]][0]) return false;
    for (u32 r = 0; r < nodes_.size(); ++r)
        // Pairs with publish_header in `spread`.
        if (is_remote(r) && observe_header(&blocks_[r].headers[call % 2].call) != call) return true;
    return false;
}

u32 Network::holds_up(u32 rank) const {
    if (!is_remote(rank)) return rank;
    if (const u32 leader = members_[nodes_[rank_]][0]; leader != rank_) return leader;
    if (exchange_.stage == Exchange::kGather) return missing().value_or(rank);
    if (!exchange_.under_way) return rank;
    const bool comes = std::ranges::any_of(exchange_.received, &Parcel::travels);
    const u32 steps = comes ? exchange_.known : u32(members_.size()) - exchange_.known;
    return members_[before(steps)][0];
}

void Network::posted(u64 call) {
    open_.clear();
    said_at_ = 0;
    exchange_.call = call;
    if (members_[nodes_[rank_]][0] != rank_) return;
    exchange_.stage = Exchange::kGather;
}

// The other end of the fifo: it takes the messages of a sender, and brings those of a receiver. The rank's one thread
// that is in the call does both.
void Network::move(Line& line) {
    line.sends ? send(line) : receive(line);
    const u64 before = line.done;
    while (line.done != line.given && has_arrived(line.parcel(line.done), line.peer)) ++line.done;
    Counters& counters = *line.counters;
    u64& moved = line.sends ? counters.freed[0].count : counters.filled.count;
    if (line.done != before) __atomic_store_n(&moved, line.counter_of(line.done), __ATOMIC_RELAXED);
}

void Network::send(Line& line) {
    for (; line.allowed < line.last; line.allowed += line.places) {
        if (!line.credit.travels) receive(line.credit, &nothing, 0, line.peer, kCreditTag + line.channel);
        if (!has_arrived(line.credit, line.peer)) break;
    }
    const u64 filled = line.messages_of(counted(&line.counters->filled.count));
    const u64 end = std::min({filled, line.allowed, line.done + line.places});
    for (; line.given < end; ++line.given) {
        const std::span<const char> message = line.message(line.given);
        send(line.parcel(line.given), message.data(), message.size(), line.peer, kSlotTag + line.channel, moved_);
    }
}

void Network::receive(Line& line) {
    const u64 freed = line.direct ? line.done : line.messages_of(counted(&line.counters->freed[0].count));
    for (; line.given < std::min(line.last, freed + line.places); ++line.given) {
        const std::span<char> message = line.message(line.given);
        receive(line.parcel(line.given), message.data(), message.size(), line.peer, kSlotTag + line.channel);
    }
    for (; line.allowed < line.given && has_arrived(line.credit, line.peer); line.allowed += line.places)
        send(line.credit, &nothing, 0, line.peer, kCreditTag + line.channel, said_);
}

void Network::exchange() {
    for (;;) {
        if (exchange_.stage == Exchange::kIdle) return;
        if (exchange_.stage == Exchange::kGather) {
            if (missing()) return;
            load(Exchange::kLines);
        }
        if (exchange_.known < members_.size()) {
            if (!ends_round()) return;
            continue;
        }
        if (exchange_.stage == Exchange::kLines) {
            if (!are_alike()) {
                load(Exchange::kHeaders);
                continue;
            }
        }
        spread();
        exchange_.stage = Exchange::kIdle;
    }
}

// The first rank of this node that has not posted its header, if any.
std::optional<u32> Network::missing() const {
    const std::vector<u32>& mates = members_[nodes_[rank_]];
    const auto found = std::find_if(mates.begin(), mates.end(), [&](u32 r) {
        // Pairs with publish_header in ControlPlane::post.
        return observe_header(&blocks_[r].headers[exchange_.call % 2].call) != exchange_.call;
    });
    return found == mates.end() ? std::nullopt : std::optional(*found);
}

void Network::load(Exchange::Stage stage) {
    Exchange& e = exchange_;
    e.stage = stage;
    e.data.resize(nodes_.size() * item());
    e.known = 1;
    each_known([&](u32 r, u64 at) {
        const RankBlock& block = blocks_[r];
        const CallHeader& header = block.headers[e.call % 2];
        if (stage == Exchange::kHeaders) {
            std::memcpy(&e.data[at], &header, sizeof header);
            return;
        }
        Opening opening{{}, block.eager[e.call % 2]};
        std::memcpy(opening.line, &header, sizeof opening.line);
        std::memcpy(&e.data[at], &opening, sizeof opening);
    });
}

// Begins a round, or goes on with it: true when it is over, and twice as many nodes are known, or all.
bool Network::ends_round() {
    Exchange& e = exchange_;
    const u32 nodes = u32(members_.size()), count = std::min(e.known, nodes - e.known), from = before(e.known);
    const u32 source = members_[from][0], target = members_[before(nodes - e.known)][0];
    const u64 theirs = bytes_of(from, count);
    if (!e.under_way) {
        say(count, target);
        e.incoming.resize(theirs + kExchanged);
        e.received.clear();
        receive(e.received.emplace_back(), e.incoming.data(), e.incoming.size(), source, kHeaderTag);
        e.under_way = true;
        e.has_heard = false;
    }
    if (!e.has_heard && has_arrived(e.received.front(), source)) {
        e.has_heard = true;
        hear_of(from, count, source);
    }
    const auto have_arrived = [&](std::deque<Parcel>& parcels, u32 rank) {
        return std::ranges::all_of(parcels, [&](Parcel& parcel) { return has_arrived(parcel, rank); });
    };
    const bool left = have_arrived(e.sent, target), came = e.has_heard && have_arrived(e.received, source);
    if (!left || !came) return false;
    std::copy_n(e.incoming.data(), theirs, e.data.data() + bytes_of(nodes_[rank_], e.known));
    e.known += count;
    e.under_way = false;
    return true;
}

// Sends the items of so many nodes, and the eager messages of their ranks: behind the items, if that is sent at once or
// they are short, else from where they lie.
void Network::say(u32 count, u32 target) {
    Exchange& e = exchange_;
    const u32 own = nodes_[rank_];
    e.outgoing.assign(e.data.data(), e.data.data() + bytes_of(own, count));
    e.sent.clear();
    const bool together = go_together(own, count, e.data.data());
    if (together)
        each_eager(own, count, e.data.data(), [&](const char* messages, u64 bytes) {
            e.outgoing.insert(e.outgoing.end(), messages, messages + bytes);
        });
    send(e.sent.emplace_back(), e.outgoing.data(), e.outgoing.size(), target, kHeaderTag, said_);
    if (together) return;
    each_eager(own, count, e.data.data(), [&](const char* messages, u64 bytes) {
        send(e.sent.emplace_back(), messages, bytes, target, kHeaderTag, said_);
    });
}

// The same of the node at the other end and those before it, whose items have come: their messages get to where the
// ranks of this node read them, before the headers that say that they are there.
void Network::hear_of(u32 from, u32 count, u32 source) {
    Exchange& e = exchange_;
    const char* next = e.incoming.data() + bytes_of(from, count);
    const bool together = go_together(from, count, e.incoming.data());
    each_eager(from, count, e.incoming.data(), [&](char* messages, u64 bytes) {
        if (!together) return receive(e.received.emplace_back(), messages, bytes, source, kHeaderTag);
        std::copy_n(next, bytes, messages);
        next += bytes;
    });
}

// visit(where they lie, bytes): the eager messages of ranks whose `items` these are, in parts that an MPI sends at
// once. Those of some nodes, the first one and those before it.
template <class Visit> void Network::each_eager(u32 first, u32 nodes, const char* items, const Visit& visit) const {
    if (exchange_.stage != Exchange::kLines) return;
    const u32 all = u32(members_.size());
    for (u32 n = 0; n < nodes; ++n)
        for (const u32 r : members_[(first + all - n) % all]) {
            Opening opening;
            std::memcpy(&opening, items, sizeof opening);
            items += sizeof opening;
            char* const area = eager_area(blocks_, u32(nodes_.size()), area_bytes_, r, exchange_.call);
            for (u64 at = 0; at < opening.eager; at += kAtOnce) visit(area + at, std::min(opening.eager - at, kAtOnce));
        }
}

bool Network::go_together(u32 first, u32 nodes, const char* items) const {
    u64 bytes = bytes_of(first, nodes);
    each_eager(first, nodes, items, [&](const char*, u64 more) { bytes += more; });
    return bytes <= kAtOnce || area_bytes_ < kLeastApart;
}

// Of some nodes, the first one and those before it.
u64 Network::bytes_of(u32 first, u32 nodes) const {
    const u32 all = u32(members_.size());
    u64 ranks = 0;
    for (u32 n = 0; n < nodes; ++n) ranks += members_[(first + all - n) % all].size();
    return ranks * item();
}

// visit(rank, where its header is in `data`)
template <class Visit> void Network::each_known(const Visit& visit) const {
    u64 at = 0;
    for (u32 n = 0; n < exchange_.known; ++n)
        for (const u32 r : members_[before(n)]) {
            visit(r, at);
            at += item();
        }
}

// Whether ranks need to read no more than the first lines.
bool Network::are_alike() const {
    const CallHeader& mine = blocks_[rank_].headers[exchange_.call % 2];
    bool alike = !says_more(mine.terms);
    each_known([&](u32, u64 at) {
        u64 signature = 0;
        std::memcpy(&signature, &exchange_.data[at + offsetof(CallHeader, signature)], sizeof signature);
        alike = alike && signature == mine.signature;
    });
    return alike;
}

// Stores what the ranks of other nodes have said where those of this one read it.
void Network::spread() {
    constexpr u64 kSaid = offsetof(CallHeader, signature);
    Exchange& e = exchange_;
    const u64 header = e.stage == Exchange::kHeaders ? sizeof(CallHeader) : kCacheLine;
    each_known([&](u32 r, u64 at) {
        if (!is_remote(r)) return;
        CallHeader& copy = blocks_[r].headers[e.call % 2];
        std::memcpy(reinterpret_cast<char*>(&copy) + kSaid, &e.data[at + kSaid], header - kSaid);
        publish_header(&copy.call, e.call);  // pairs with observe_header in ControlPlane::await_all
    });
    for (const u32 r : members_[nodes_[rank_]]) ring(blocks_[r].bell);
}

// Says to the ranks of other nodes, each of which may wait for this one, that it makes no more calls.
void Network::tell() {
    if (!tells_.load(std::memory_order_acquire)) return;  // pairs with `ended`
    tells_.store(false, std::memory_order_relaxed);
    const RankBlock& block = blocks_[rank_];
    Notice notice{rank_, block.state, block.culprit, block.since, {}};
    std::memcpy(notice.text, block.text, sizeof notice.text);
    tell(notice);
}

void Network::tell(const Notice& notice) {
    forget_told();
    Told& told = *told_.emplace_back(std::make_unique<Told>(notice, std::vector<Parcel>(nodes_.size())));
    for (u32 r = 0; r < nodes_.size(); ++r)
        if (is_remote(r) && r != notice.rank)
            send(told.parcels[r], &told.notice, sizeof told.notice, r, kNoticeTag, said_);
}

// Those that have arrived everywhere.
void Network::forget_told() {
    std::erase_if(told_, [&](const auto& told) {
        u32 r = 0;
        while (r < nodes_.size() && has_arrived(told->parcels[r], r)) ++r;
        return r == nodes_.size();
    });
}

void Network::gone(u32 rank) {
    if (!broken_) tell({rank, kGone, rank, 0, {}});
}

// Says so only once in kGrace, unless it waits for another than it has said, or has not asked yet.
void Network::waits(u32 rank, bool late) {
    if (broken_ || !(late || asked_)) return;
    hear();
    const double now = seconds();
    if (rank == awaited_ && now - said_at_ < kGrace && (has_asked_ || !late)) return;
    asked_ = false;
    has_asked_ = late;
    awaited_ = rank;
    said_at_ = now;
    tell({rank_, late ? kIsLate : kWaits, rank, exchange_.call, {}});
}

void Network::hear() {
    for (; !broken_; note(heard_)) {
        if (!hearing_.travels) {
            bool found = false;
            const int error = wire_.take(wire_.context, &heard_, sizeof heard_, kNoticeTag, hearing_.ticket, found);
            if (error != 0) return lose(other_, error);
            hearing_.travels = found;
        }
        if (!hearing_.travels || !has_arrived(hearing_, other_)) return;
    }
}

// Every rank of this node hears of it; the first one stores it, which the exchange says: it orders nothing else.
void Network::note(const Notice& notice) {
    if (std::max(notice.rank, notice.culprit) >= nodes_.size()) return;
    RankBlock& copy = blocks_[notice.rank];
    if (notice.state == kGone) {
        __atomic_store_n(&copy.gone, 1, __ATOMIC_RELAXED);  // for `is_gone`, which looks now and then
        return;
    }
    if (notice.state >= kWaits) {
        const u64 call = exchange_.call;
        const bool entered = observe_header(&copy.headers[call % 2].call) == call;        // pairs with `spread`
        if (entered && notice.since != call && (notice.since - call) >> 63 != 0) return;  // that wait is over
        asked_ |= notice.state == kIsLate;
        __atomic_store_n(&copy.peer, notice.culprit, __ATOMIC_RELAXED);  // hints: see ControlPlane::waits
        __atomic_store_n(&copy.looked, u64((seconds() + kGrace) * 1e9), __ATOMIC_RELAXED);
        return;
    }
    ++left_;
    if (__atomic_exchange_n(&copy.claimed, 1, __ATOMIC_RELAXED) != 0) return;
    copy.culprit = notice.culprit;
    copy.since = notice.since;
    std::memcpy(copy.text, notice.text, sizeof copy.text);
    publish_state(&copy.state, notice.state);  // pairs with observe_state, on every rank of this node
    for (const u32 r : members_[nodes_[rank_]]) ring(blocks_[r].bell);
}

void Network::send(Parcel& parcel, const void* data, u64 bytes, u32 rank, u32 tag, Sent& counted) {
    if (const int error = wire_.send(wire_.context, data, bytes, rank, tag, parcel.ticket)) return lose(rank, error);
    parcel.travels = true;
    ++counted.messages;
    __atomic_store_n(&counted.bytes, counted.bytes + bytes, __ATOMIC_RELAXED);  // for who reads it meanwhile: a number
}

void Network::receive(Parcel& parcel, void* data, u64 bytes, u32 rank, u32 tag) {
    if (const int error = wire_.receive(wire_.context, data, bytes, rank, tag, parcel.ticket)) return lose(rank, error);
    parcel.travels = true;
}

bool Network::has_arrived(Parcel& parcel, u32 rank) {
    bool done = !parcel.travels;
    if (done || broken_) return done && !broken_;
    if (const int error = wire_.test(wire_.context, parcel.ticket, done)) lose(rank, error);
    parcel.travels = !done;
    return done && !broken_;
}

void Network::drop(Parcel& parcel) {
    if (parcel.travels) wire_.drop(wire_.context, parcel.ticket);
    parcel.travels = false;
}

// The wire has failed: as if the rank at the other end had. From here on nothing arrives.
void Network::lose(u32 rank, int error) {
    broken_ = true;
    Notice notice{rank, kAborted, rank, 0, {}};
    const std::string why = "cannot be reached: " + wire_.describe(wire_.context, error);
    why.copy(notice.text, sizeof notice.text - 1);
    note(notice);
}

}  // namespace hocket
