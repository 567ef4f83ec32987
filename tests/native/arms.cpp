// Which arm a call takes, and what is noted of those that are timed.
#include "policy/arms.h"

#include <cmath>
#include <vector>

#include "runner.h"

namespace hocket::test {
namespace {

TEST(arms_follow_the_table_alone) {
    KeyArms one, other;
    const std::vector<u32> until = {0, 1 << 12, 1 << 14};
    for (KeyArms* arms : {&one, &other}) arms->set(7, 2, 3, until);
    std::vector<u64> taken(4);
    for (u64 call = 0; call < 4 << 16; ++call) {
        const u32 arm = one.arm(call);
        CHECK(arm == other.arm(call) && arm == one.arm(call / 4 * 4));  // the same in a window
        ++taken[arm];
        one.enter(arm);  // what this rank notes changes nothing
    }
    const auto about = [&](u32 arm, double part) {
        return std::abs(double(taken[arm]) / (4 << 16) - part) < part / 10;
    };
    CHECK(taken[0] == 0 && about(1, 1.0 / 16) && about(2, 3.0 / 16) && about(3, 3.0 / 4));
    other.set(8, 2, 3, until);
    u64 differ = 0;
    for (u64 call = 0; call < 1 << 16; ++call) differ += one.arm(call) != other.arm(call);
    CHECK(differ > 1 << 12);  // another table draws anew
}

TEST(arms_without_exploring) {
    KeyArms arms;
    CHECK(arms.arm(0) == 0 && arms.arm(12345) == 0);  // the first, before any table
    arms.set(1, 0, 5, {});
    CHECK(arms.arm(0) == 5 && arms.arm(12345) == 5);
    const auto refuses = [&](u32 shift, u32 incumbent, const std::vector<u32>& until) {
        try {
            arms.set(1, shift, incumbent, until);
        } catch (const std::invalid_argument&) {
            return arms.arm(0) == 5;
        }
        return false;
    };
    CHECK(refuses(64, 0, {}) && refuses(0, kArms, {}) && refuses(0, 0, {2, 1}) && refuses(0, 0, {(1 << 16) + 1}));
    CHECK(refuses(0, 0, std::vector<u32>(kArms + 1)));
}

// The first call by an arm after another is not timed, nor are most by the incumbent.
TEST(arms_are_timed) {
    KeyArms arms;
    arms.set(1, 0, 0, std::vector<u32>{0, 1});
    const auto enter = [&arms](u32 arm) {
        const bool timed = arms.is_timed(arm);
        arms.enter(arm);
        return timed;
    };
    CHECK(!enter(1) && enter(1) && enter(1) && !enter(0));
    u32 timed = 0;
    for (u32 call = 0; call < 64; ++call) timed += enter(0);
    CHECK(timed == 8);
    for (const u64 ticks : {1 << 10, 1 << 12}) arms.took(1, ticks);
    KeyArms::Noted noted = arms.take();
    CHECK(noted.calls == 68 && noted.timings[1].count == 2 && noted.timings[1].sum == 22);
    CHECK(noted.timings[1].squares == 244 && noted.timings[0].count == 0);
    noted = arms.take();
    CHECK(noted.calls == 0 && noted.timings[1].count == 0);
    const auto all = [&](u32 arm) {
        for (u32 call = 0; call < 64; ++call) CHECK(enter(arm));
        for (u32 call = 0; call < 8; ++call) timed += enter(arm);
        CHECK(timed == 1);
        timed = 0;
    };
    timed = 0;
    arms.told();  // of a change: the next are all timed
    all(0);
    arms.set(2, 0, 1, {});
    enter(1);
    arms.set(3, 0, 0, {});
    arms.set(4, 0, 1, {});  // so are those of a new incumbent
    all(1);
}

// Whether the latest calls of an incumbent take another time than before: one or two that are late, or calls by another
// arm, are not enough.
TEST(arms_differ) {
    KeyArms arms;
    const auto differs = [&arms](u32 arm, const std::vector<u64>& ticks) {
        for (const u64 each : ticks) arms.took(arm, each);
        if (!arms.differs()) return false;
        arms.take();
        CHECK(arms.differs());  // until it was told
        arms.told();
        return !arms.differs();
    };
    const std::vector<u64> usual(20, 100), slow(20, 300);
    CHECK(!differs(0, {300, 300, 300, 300}));  // nothing is known to compare with
    arms = {};
    CHECK(!differs(0, usual) && !differs(0, {1000, 1000, 120, 1000, 90, 90}) && !differs(1, slow));
    CHECK(!differs(0, {300}) && !differs(0, {300, 100}) && differs(0, {300, 300}));
    CHECK(!differs(0, slow) && !differs(0, {300, 300, 300}));  // that is usual now
    CHECK(differs(0, {100, 100, 100}));                        // less, too
    CHECK(!differs(0, usual));
    arms.set(1, 0, 1, {});
    CHECK(!differs(1, slow));  // nothing is known of another incumbent
    arms.set(2, 0, 1, {});
    CHECK(differs(1, {100, 100, 100}));
}

}  // namespace
}  // namespace hocket::test
