// The transport between nodes: slots as those of shared memory, whose messages a wire carries.
//
// A connection to a rank of another node has a window of its own at either end, in private memory, and its port is the
// Fifo of shared memory. `progress` is the peer: at the sender it hands what is filled to the wire and frees the slot
// once that has left; at the receiver it has the free slots receive, ahead of the sender, and fills them as messages
// come. But for the first of a call, a round, of as many messages as there are slots, waits for a credit, a message of
// no bytes, by which the receiver says that it awaits the round: over TCP some MPIs read no more behind many messages
// that nobody awaits.
//
// Direct messages take no slot: the wire sends from the sender's buffers and receives in the receiver's. The ports
// still count tiles, as they are stored and as they have come.
//
// Headers go from node to node in ceil(log2 nodes) rounds (Bruck et al., IEEE TPDS'97): the lowest rank of a node, its
// leader, waits for those of its own node, and doubles what it knows in every round. First go the lines that agreeing
// ranks read, with their eager messages behind them, and whole headers only where those differ.
#pragma once

#include <atomic>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/interpreter.h"
#include "protocol/header.h"
#include "protocol/nodes.h"
#include "transport/memory.h"
#include "transport/wire.h"

namespace hocket {

// The chunk that the tiles of a connection lie in, in a buffer of this rank, for a call that outlives them; so many of
// them are one message.
struct Direct {
    const OperandRecord* lies;
    const Buffer* buffers;
    const Geometry* geometry;
    u64 tiles_a_message;

    u64 messages() const { return (geometry->tiles + tiles_a_message - 1) / tiles_a_message; }
    std::span<char> message(u64 number) const;
};

class Network final : public OtherNodes {
  public:
    // `nodes[r]`: that of rank r; they are numbered in the order of their lowest ranks. `blocks`: the control region of
    // this node. The wire's context outlives this.
    Network(u32 rank, std::vector<u32> nodes, RankBlock* blocks, Wire wire);
    ~Network() override;
    Network& operator=(Network&&) = delete;

    bool is_remote(u32 rank) const override { return nodes_[rank] != nodes_[rank_]; }

    // The window of a connection with a rank of another node; null where there are too many channels. It keeps its
    // address as an object; `reserve` fills it, and returns 0 or an errno.
    Window* window(u32 peer, u32 channel, bool sends);
    int reserve(Window* window, u64 bytes);
    // For a call that sends, or receives, so many messages through the window. Returns where the sender says how long
    // each is, by slot.
    u64* open(Window* window, u64 slots, u64 slot_bytes, u64 messages);
    // For a call whose tiles are direct. As many messages as there would be slots are on their way at once.
    void open(Window* window, u64 slots, const Direct& direct);
    // After a call: nothing more of it is sent or received. Returns whether the wire may still access buffers of this
    // rank, where it failed.
    bool close();
    // Messages of the call that have not left, and the first rank, or `only` that one, that they are for; null for
    // none.
    u64 outstanding() const;
    const u32* awaited(const u32* only = nullptr) const;

    // Waits until the ranks of other nodes have been told that this one makes no more calls, for a second at most; and
    // if it has left, a moment for theirs to come: the wire may complain of what is never received.
    void finish();
    // The wire is no more: nothing is sent or received from here on.
    void abandon() {
        broken_ = true;
        tells_ = false;
    }
    // Whether some memory may still be read or written by the wire, as after a call that failed.
    bool is_busy() const;
    // Such memory, to be freed with this.
    void hold(std::unique_ptr<char, decltype(&std::free)> memory) { held_ = std::move(memory); }

    void progress() override;
    void posted(u64 call) override;
    bool awaits(u32 rank, u64 call) const override;
    u32 holds_up(u32 rank) const override;
    void ended() override { tells_.store(true, std::memory_order_release); }  // pairs with `tell`
    void waits(u32 rank, bool late) override;
    void gone(u32 rank) override;

    // What this rank has given to the wire.
    struct Sent {
        u64 messages = 0, bytes = 0;
    };
    const Sent& moved() const { return moved_; }  // of calls
    const Sent& said() const { return said_; }    // of headers and states

  private:
    // A message on its way, or none.
    struct Parcel {
        Ticket ticket;
        bool travels = false;
    };

    // One end of a connection. Of the messages of a call `given` went to the wire, to be sent or received, and of these
    // `done` have left or come; `last` will have when the call ends. Those up to `allowed` may be sent, as `credit`
    // says. `begun`: where the counters were when the call began.
    struct Line : Window {
        u32 peer = 0, channel = 0;
        bool sends = false;
        u64 places = 0, place_bytes = 0;  // slots
        u64 begun = 0, given = 0, done = 0, last = 0, allowed = 0;
        std::optional<Direct> direct;
        Parcel credit;
        std::vector<Parcel> parcels;  // by slot
        std::vector<u64> lengths;     // of what is sent, by slot
        std::unique_ptr<char, decltype(&std::free)> memory{nullptr, &std::free};

        u64 place(u64 message) const { return (begun + message) & (places - 1); }
        Parcel& parcel(u64 message) { return parcels[place(message)]; }
        std::span<char> message(u64 number) const;
        u64 messages_of(u64 counter) const;
        u64 counter_of(u64 messages) const;
    };

    // What goes of a header first, and bytes of the rank's eager messages, which follow.
    struct Opening {
        char line[kCacheLine];
        u64 eager;
    };

    // The leader's part of the exchange of headers. `data`: those of `known` nodes, this one and those before it. What
    // comes in a round are items, and then, once these are heard, perhaps eager messages by themselves.
    struct Exchange {
        enum Stage { kIdle, kGather, kLines, kHeaders } stage = kIdle;
        u64 call = 0;
        u32 known = 0;
        bool under_way = false, has_heard = false;  // a round, and what comes in it first
        std::vector<char> data, outgoing, incoming;
        std::deque<Parcel> sent, received;  // in this round
    };

    // What the block of a rank says that makes no more calls; or that it waits, or that its process has ended.
    struct Notice {
        u64 rank, state, culprit, since;
        char text[sizeof(RankBlock::text)];
    };
    // One on its way to the ranks of other nodes.
    struct Told {
        Notice notice;
        std::vector<Parcel> parcels;  // by rank
    };

    void send(Parcel& parcel, const void* data, u64 bytes, u32 rank, u32 tag, Sent& counted);
    void receive(Parcel& parcel, void* data, u64 bytes, u32 rank, u32 tag);
    bool has_arrived(Parcel& parcel, u32 rank);
    void drop(Parcel& parcel);
    void lose(u32 rank, int error);
    void move(Line& line);
    void send(Line& line);
    void receive(Line& line);
    void exchange();
    std::optional<u32> missing() const;
    void load(Exchange::Stage stage);
    bool ends_round();
    void say(u32 count, u32 target);
    void hear_of(u32 from, u32 count, u32 source);
    template <class Visit> void each_eager(u32 first, u32 nodes, const char* items, const Visit& visit) const;
    bool go_together(u32 first, u32 nodes, const char* items) const;
    bool are_alike() const;
    void spread();
    void tell();
    void tell(const Notice& notice);
    void forget_told();
    void hear();
    void note(const Notice& notice);

    u64 item() const { return exchange_.stage == Exchange::kHeaders ? sizeof(CallHeader) : sizeof(Opening); }
    u32 before(u32 steps) const { return (nodes_[rank_] + u32(members_.size()) - steps) % u32(members_.size()); }
    u64 bytes_of(u32 first, u32 nodes) const;
    template <class Visit> void each_known(const Visit& visit) const;

    const u32 rank_;
    u32 other_ = 0;                          // the first rank of another node
    const std::vector<u32> nodes_;           // by rank
    const u64 area_bytes_;                   // of eager messages of a rank
    std::vector<std::vector<u32>> members_;  // by node
    RankBlock* const blocks_;
    const Wire wire_;
    std::map<u64, std::unique_ptr<Line>> lines_;
    std::vector<Line*> open_;  // in the latest call
    Exchange exchange_;
    std::atomic<bool> tells_{false};
    std::vector<std::unique_ptr<Told>> told_;
    u32 looks_ = 0;
    Notice heard_{};
    Parcel hearing_;      // `heard_`
    bool asked_ = false;  // whom this rank waits for
    u32 awaited_ = 0;     // whom it named last, whether it asked the others then, and when
    bool has_asked_ = false;
    double said_at_ = 0;
    u64 left_ = 0;  // ranks of other nodes that have said so
    Sent moved_, said_;
    std::unique_ptr<char, decltype(&std::free)> held_{nullptr, &std::free};
    bool broken_ = false, parted_ = false;
};

}  // namespace hocket
