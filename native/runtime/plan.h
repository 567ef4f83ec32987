// A plan made ready for one communicator.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/call.h"

namespace hocket {

class Communicator;

// Owns all memory that an execution needs but its buffers. What is not const belongs to the call that runs it.
class Plan {
  public:
    // Throws std::invalid_argument if the words are no plan of this rank.
    Plan(Communicator& communicator, std::vector<u32> words, u64 digest, std::string name);
    Plan& operator=(Plan&&) = delete;

    const PlanView& view() const { return view_; }
    const PlanHeader& header() const { return *view_.header; }
    std::span<const ConnectionRecord> connections() const { return {view_.connections, header().connections}; }

    u64 digest() const { return digest_; }
    const std::string& name() const { return name_; }
    // The author of its name (ControlPlane); no other plan of its communicator has it.
    u64 number() const { return number_; }

    // What a call of this plan says beside its name: what its elements are, where kernels do not know their type, and
    // units of lengths of their own. `digest`: of the element. Either is empty where there is nothing to say.
    struct Details {
        std::string element, units, text;
        u32 digest = 0;
        u64 author = 0;
    };
    const Details& details(std::string_view element, std::string_view units, Communicator& communicator);

    // By connection; `multicasts`: by multicast, of all ranks.
    std::span<Window* const> windows() const { return windows_; }
    std::span<Window* const> multicasts() const { return multicasts_; }
    // By connection: messages a tile.
    std::span<const u64> messages() const { return messages_; }
    // As a call in this shape runs it. Where messages do not travel with headers, a step does not move a direct one: it
    // lies in the first of the step's operands that is in a buffer of this rank, `lies` by connection.
    const PlanView& view_in(const Shape& shape) const { return lies_.empty() || shape.eager() ? view_ : direct_view_; }
    const OperandRecord& lies(u32 connection) const { return lies_[connection]; }
    std::span<End> ends() { return ends_; }
    std::span<Cursor> cursors() { return cursors_; }
    // For the kernel calls of one thread.
    Room room(u32 thread, bool attached) {
        const u64 at = 2 * u64(view_.most_operands) * thread;
        return {pointers_.data() + at, attached ? owners_.data() + at : nullptr};
    }

    // A buffer that others can reach, and in how many calls it was asked whether it lies in huge pages.
    struct Reachable {
        std::span<const char> buffer;
        bool huge = false;
        u64 asked = 0;
    };

    // What its latest call found out: the shape that was settled, and for what; where the result lies, if it was stored
    // non-temporally; and buffers that others can reach. And the latest calls on units of each size: a bit, by its bit
    // width, for those whose buffers were in no cache near.
    struct Latest {
        u64 n = 0, tile = 0;
        u32 type = ~0u;
        u64 most_eager = 0;
        Shape shape{};
        const char* streamed = nullptr;
        Reachable reachable[2];
        u64 far = 0;
    };
    Latest latest;

  private:
    void lay_direct();

    std::vector<u32> words_;
    u64 digest_;
    std::string name_;
    u64 number_;
    PlanView view_{}, direct_view_{};
    std::vector<OperandRecord> lies_, direct_operands_;  // empty where no message is direct
    std::vector<StepRecord> direct_steps_;
    std::vector<Window*> windows_, multicasts_;
    std::vector<u64> messages_;
    std::vector<End> ends_;
    std::vector<Cursor> cursors_;
    std::vector<char*> pointers_;
    std::vector<u32> owners_;
    Details details_;  // of the latest call that had any
};

}  // namespace hocket
