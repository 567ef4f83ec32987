// A call as Python gives it: the arrays that it holds, and what is to be done with them.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>

#include "python/member.h"

namespace hocket {

// The memory of a contiguous array, held while it is used.
class Held {
  public:
    explicit Held(nanobind::handle array) {
        if (!array.is_none() && PyObject_GetBuffer(array.ptr(), &view_, PyBUF_SIMPLE) != 0)
            throw nanobind::python_error();
    }
    ~Held() { PyBuffer_Release(&view_); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    char* data() const { return static_cast<char*>(view_.buf); }
    u64 bytes() const { return u64(view_.len); }
    void need(u64 bytes) const {
        if (u64(view_.len) < bytes) throw std::invalid_argument("an array is smaller than the plan's buffer");
    }

  private:
    Py_buffer view_{};
};

// Throws std::invalid_argument where the table has none.
inline Kernel kernel_of(const KernelTable& table, u32 type, u32 op) {
    if (type >= kTypes || op >= kOperators || table.reduce[type][op] == nullptr)
        throw std::invalid_argument("this type does not have this operator");
    return table.reduce[type][op];
}

inline Divide divide_of(const KernelTable& table, u32 type) {
    if (type >= kTypes || table.divide[type] == nullptr) throw std::invalid_argument("this type has no division");
    return table.divide[type];
}

// The plans of kZeroCopy, or None, the input and the output.
using OfferTuple = std::tuple<std::array<nanobind::object, std::size(kZeroCopy)>, nanobind::object, nanobind::object>;

// An offer, and the arrays and plans that it is of.
class HeldOffer {
  public:
    // Throws std::invalid_argument where an array is too short for units of so many bytes.
    HeldOffer(OfferTuple given, u64 unit)
        : given(std::move(given)),
          in_(std::get<1>(this->given)),
          out_(std::get<2>(this->given)) {
        offer.input = in_.data();
        offer.output = out_.data();
        for (const Variant variant : kZeroCopy) {
            const nanobind::object& plan = std::get<0>(this->given)[variant - kZeroCopy[0]];
            if (plan.is_none()) continue;
            const PlanHeader& h = (offer.plans[variant] = nanobind::cast<Plan*>(plan))->header();
            if (offer.input != nullptr) in_.need(unit * h.input_blocks);
            if (offer.output != nullptr) out_.need(unit * h.output_blocks);
        }
    }

    std::array<PyObject*, 2> arrays() const { return {std::get<1>(given).ptr(), std::get<2>(given).ptr()}; }

    const OfferTuple given;
    Offer offer;

  private:
    Held in_, out_;
};

// One call on arrays, which it holds. It is made once.
class Request {
  public:
    // `initial` is copied to byte `place` of the first of its buffers. Of the input, what begins at byte `taken` is
    // copied to `result`. Throws std::invalid_argument for what could lead outside the arrays.
    Request(nanobind::object plan, nanobind::object input, nanobind::object output, std::optional<u64> n, u32 type,
            u32 op, u64 tile, nanobind::object initial, u64 place, nanobind::object result, std::optional<u64> taken,
            bool average, std::optional<std::string> element, const Units* given, std::optional<OfferTuple> offered)
        : plan(std::move(plan)),
          input(std::move(input)),
          output(std::move(output)),
          initial(std::move(initial)),
          result(std::move(result)),
          place(place),
          taken(taken),
          average(average),
          element(std::move(element)),
          plan_(*nanobind::cast<Plan*>(this->plan)),
          in_(this->input),
          out_(this->output),
          from_(this->initial) {
        if (op >= kOperators || (tile & (tile - 1)) || (tile && tile < kAlign))
            throw std::invalid_argument("operator or tile");
        if (n && plan_.combines()) kernel_of(kernels(), type, op);
        const u64 unit = n.value_or(0) * type_bytes(type);
        if (given != nullptr) units_ = *given;  // the call may be in the background
        if (!this->input.is_none()) in_.need(end(kInput, unit, plan_.header().input_blocks));
        if (!this->output.is_none()) out_.need(end(kOutput, unit, plan_.header().output_blocks));
        char* to = nullptr;
        if (!this->initial.is_none()) {
            const Held& whole = this->input.is_none() ? out_ : in_;
            whole.need(place + from_.bytes());
            to = whole.data() + place;
        }
        call = {in_.data(),
                out_.data(),
                from_.data(),
                to,
                from_.bytes(),
                n.value_or(0),
                tile,
                type,
                op,
                n.has_value(),
                units_ ? &*units_ : nullptr};
        if (this->element) call.element = &*this->element;
        if (!this->result.is_none() && (taken || average)) {
            const Held& made = made_.emplace(this->result);
            if (taken) in_.need(*taken + made.bytes());
            call.finish = {made.data(), made.bytes(), taken ? in_.data() + *taken : nullptr,
                           average ? divide_of(kernels(), type) : nullptr};
        }
        if (!offered && plan_.lends()) throw std::invalid_argument("a plan that lends is offered");
        if (!offered) return;
        offer.emplace(std::move(*offered), unit);
        call.offer = &offer->offer;
    }
    Request(const Request&) = delete;
    Request& operator=(const Request&) = delete;

    Outcome run(Communicator& communicator) {
        if (offer) exposed_.emplace(offer->arrays());
        Outcome outcome = communicator.run(plan_, call);
        if (offer) exposed_->exposed = outcome.exposed;
        return outcome;
    }

    const nanobind::object plan, input, output, initial, result;
    const u64 place;
    const std::optional<u64> taken;
    const bool average;
    const std::optional<std::string> element;
    std::optional<HeldOffer> offer;
    Call call{};

  private:
    // Bytes of a buffer. Throws std::invalid_argument for units that are not those of the plan, or too long.
    u64 end(Place which, u64 unit, u64 blocks) const {
        if (!units_) return unit * blocks;
        const std::vector<u64>& bounds = units_->bounds[which];
        bool good = bounds.size() == blocks + 1 && bounds[0] == 0;
        for (u64 u = 0; good && u < blocks; ++u) good = bounds[u] <= bounds[u + 1] && bounds[u + 1] - bounds[u] <= unit;
        if (!good) throw std::invalid_argument("units");
        return bounds[blocks];
    }

    Plan& plan_;
    const Held in_, out_, from_;
    std::optional<Held> made_;  // the result, where something is left to do with it
    std::optional<Units> units_;
    std::optional<Exposed> exposed_;
};

}  // namespace hocket
