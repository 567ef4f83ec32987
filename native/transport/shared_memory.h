// What ranks share: one file without a name, mapped piece by piece.
//
// The file is sparse and very large: a control region, then a window at a fixed place for every connection there could
// be, (source, destination, channel). So no rank has to agree with another on an allocation, memory is reused from one
// schedule to the next, and a window that grows stays where it is. A file that is no memfd grows to its last window.
#pragma once

#include <sys/prctl.h>
#include <sys/types.h>
#include <map>
#include <memory>
#include <vector>

#include "transport/arena.h"
#include "transport/cma.h"
#include "transport/mapping.h"
#include "transport/pages.h"

namespace hocket {

constexpr u64 kPlans = kWindowStride / 2;      // from where on ranks share plans (hocket/runtime/plan_cache.py)
constexpr u64 kStamp = kWindowStride - kPage;  // where the file says which meeting it is of

// Makes sure that there is memory for the control region of so many ranks. Returns 0 or an errno.
int reserve_control(int descriptor, u32 ranks, bool on_several_nodes);

// Memory in a file that other processes map too (hocket/runtime/segments.py).
class SharedMemory final : public Memory {
  public:
    // Takes the descriptors over, also where it throws std::system_error. Who made the file has reserved the control
    // region: ranks that all did so at once would wait for each other in the kernel. `arenas`: those of all ranks, -1
    // for the own, which is `own`; none where there is one rank. `processes`: of all ranks, none where they cannot
    // reach each other's memory.
    SharedMemory(int descriptor, u32 ranks, bool on_several_nodes, std::vector<int> arenas, Arena& own,
                 std::vector<pid_t> processes);
    ~SharedMemory() override;
    SharedMemory& operator=(SharedMemory&&) = delete;

    RankBlock* control() override { return control_; }
    Window* window(u32 source, u32 destination, u32 channel) override;
    int reserve(Window* window, u64 bytes) override;
    char* rotated(u32 rank, u64 bytes) override;
    u64 place(const char* at) const override;
    void keep(u64 place) override { own_.keep(place); }
    char* arena(u32 rank, u64 bytes) override;
    char* adopted(u32 rank, u64 place) const override;
    int pull(u32 rank, const char* theirs, char* mine, u64 bytes) override {
        return pull_from(processes_[rank], theirs, mine, bytes);
    }
    int push(u32 rank, char* theirs, const char* mine, u64 bytes) override {
        return push_to(processes_[rank], theirs, mine, bytes);
    }
    bool reachable(const char* mine) const override;
    bool in_huge_pages(const char* mine, u64 bytes) override { return scan_.finds_huge(mine, bytes); }
    // Who gives up rights or changes its user is closed to others from then on.
    bool is_accessible() const override { return ::prctl(PR_GET_DUMPABLE) == 1; }

    // Memory that others made, at a place from kAdopted on, which the rank chooses that has it. Not while a call goes
    // on. That rank has it at `at`; the others know it by the place, and have its pages.
    void adopt(u64 place, char* at, u64 bytes) { lent_[at] = {place, bytes}; }
    void adopt_of(u32 rank, u64 place, char* at, std::shared_ptr<SharedPages> pages) {
        neighbours_[rank].adopted[place] = {at, std::move(pages)};
    }
    void release(u64 place) {
        std::erase_if(lent_, [&](const auto& entry) { return entry.second.place == place; });
    }
    // The control region stays mapped for ever, as a network may still access it.
    void leave_control() { control_ = nullptr; }
    void release_of(u32 rank, u64 place) { neighbours_[rank].adopted.erase(place); }

  private:
    struct Mapping : Window {
        u64 place;  // in the file
    };
    struct Lent {
        u64 place, bytes;
    };
    struct Borrowed {
        char* at;
        std::shared_ptr<SharedPages> pages;
    };
    struct Neighbour {
        int descriptor;
        char* base;
        u64 bytes;
        std::map<u64, Borrowed> adopted;  // by place
    };

    void close();

    int descriptor_;
    u32 ranks_;
    u64 control_bytes_;
    RankBlock* control_;
    char* rotated_ = nullptr;
    u64 rotated_bytes_ = 0;
    std::map<u64, Mapping> mappings_;
    std::vector<Neighbour> neighbours_;  // by rank
    Arena& own_;
    std::map<char*, Lent> lent_;  // what this rank has adopted
    const std::vector<pid_t> processes_;
    const pid_t self_;
    PageScan scan_;
};

}  // namespace hocket
