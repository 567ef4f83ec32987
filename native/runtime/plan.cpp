#include "runtime/plan.h"

#include <algorithm>
#include <stdexcept>

#include "runtime/communicator.h"

namespace hocket {

Plan::Plan(Communicator& communicator, std::vector<u32> words, u64 digest, std::string name)
    : words_(std::move(words)),
      digest_(digest),
      name_(std::move(name)),
      number_(communicator.control().new_author()) {
    if (const char* wrong = view_plan(words_.data(), words_.size(), view_))
        throw std::invalid_argument(std::string("this is no plan: ") + wrong);
    const PlanHeader& h = header();
    if (h.rank != communicator.rank() || h.ranks != communicator.size())
        throw std::invalid_argument("this plan is for another rank");
    const auto checked = [](Window* found, const char* where) {
        if (found == nullptr) throw std::invalid_argument(std::string("this plan uses too many channels") + where);
        return found;
    };
    Memory& memory = communicator.memory();
    for (const ConnectionRecord& record : connections()) {
        const u32 source = record.sends ? h.rank : record.peer, target = record.sends ? record.peer : h.rank;
        const bool remote = communicator.is_remote(record.peer);
        if (remote ? record.multicast != 0 || is_lent(record) : is_direct(record))
            throw std::invalid_argument("this plan is for ranks on other nodes");
        Window* const found = remote ? communicator.network()->window(record.peer, record.channel, record.sends != 0)
                                     : memory.window(source, record.multicast ? source : target, record.channel);
        windows_.push_back(checked(found, remote ? " between nodes" : ""));
    }
    for (const MulticastRecord& record : std::span(view_.multicasts, h.multicasts))
        multicasts_.push_back(checked(memory.window(record.source, record.source, record.channel), ""));
    messages_.resize(h.connections);
    for (u32 o = 0; o < h.operands; ++o)
        if (view_.operands[o].place >= kReceive) ++messages_[view_.operands[o].end];
    for (u32 c = 0; c < h.connections; ++c)
        if (is_direct(view_.connections[c]) && messages_[c] != 1)
            throw std::invalid_argument("this plan has other than one direct message a tile");
    lay_direct();
    ends_.resize(h.connections);
    cursors_.resize(h.blocks);
    pointers_.resize(2 * u64(view_.most_operands) * communicator.threads());
    owners_.resize(pointers_.size());
}

// A step that receives one reads it where it lies, if it has something else to do with it. Such a step has an operand
// in a buffer (view_plan). Destinations get other numbers, so `last`, a hint, is dropped.
void Plan::lay_direct() {
    const auto is_message = [&](const OperandRecord& operand) {
        return operand.place >= kReceive && is_direct(view_.connections[operand.end]);
    };
    const std::span<const OperandRecord> all(view_.operands, header().operands);
    if (std::ranges::none_of(all, is_message)) return;
    lies_.resize(header().connections);
    direct_operands_.assign(all.begin(), all.end());
    direct_steps_.assign(view_.steps, view_.steps + header().steps);
    direct_view_ = view_;
    direct_view_.operands = direct_operands_.data();
    direct_view_.steps = direct_steps_.data();
    for (StepRecord& step : direct_steps_) {
        const auto operands = std::span(direct_operands_).subspan(step.first_operand, step.sources + step.destinations);
        const auto own = std::ranges::find_if(operands, [](const OperandRecord& o) { return o.place < kReceive; });
        const bool receives = is_message(operands[0]);
        for (OperandRecord& operand : operands) {
            if (!is_message(operand)) continue;
            lies_[operand.end] = *own;
            operand.place = kHere;
            step.last = 0;
        }
        if (!receives) continue;
        std::rotate(operands.begin() + 1, own, own + 1);
        ++step.sources;
        --step.destinations;
    }
}

const Plan::Details& Plan::details(std::string_view element, std::string_view units, Communicator& communicator) {
    if (details_.author != 0 && details_.element == element && details_.units == units) return details_;
    u64 digest = element.size();
    for (const char byte : element) digest = mix(digest ^ u64(static_cast<unsigned char>(byte)));
    std::string text = name_ + '\n' + std::string(units) + (element.empty() ? "" : '\n' + std::string(element));
    details_ = {std::string(element), std::string(units), std::move(text), u32(digest),
                communicator.control().new_author()};
    return details_;
}

}  // namespace hocket
