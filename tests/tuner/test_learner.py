"""The tuner's learner: what it promises for any times, and what it does about slow arms, changes and files."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.tuner.gym import dealt
from hocket.tuner.learner import Choice, KeyState, Learner, Reason, Samples, Settings

NAN = math.nan
DEFAULTS = Settings()


def names(count: int) -> list[str]:
    return [f"arm {number}" for number in range(count)]


def batch(learner: Learner, seconds: Sequence[float], calls: int = 64, version: int = 0) -> list[int]:
    """Make so many calls as the learner says, which take the same time by the same arm; how many each arm had."""
    choice = learner.choice("key", calls)
    counts = [0] * len(seconds)
    for call in range(calls):
        counts[dealt(choice, version * (calls // DEFAULTS.run + 1) + call // DEFAULTS.run)] += 1
    for arm, count in enumerate(counts):
        timed = count if arm == choice.incumbent else count - count // DEFAULTS.run
        if timed:
            learner.observe("key", arm, Samples.of([math.log2(seconds[arm])] * timed))
    learner.counted("key", calls)
    return counts


def of(prior: Sequence[float], given: Settings | None = None) -> Learner:
    learner = Learner(given)
    learner.add("key", names(len(prior)), prior)
    return learner


def test_samples_add_up() -> None:
    values = [1.0, 4.0, -2.0, 0.5]
    whole = Samples.of(values)
    parts = Samples.of(values[:1]) + Samples.of(values[1:])
    assert (parts.count, parts.mean, parts.apart) == pytest.approx((4, whole.mean, whole.apart))
    mean = sum(values) / 4
    assert whole.apart == pytest.approx(sum((value - mean) ** 2 for value in values))
    assert Samples.of([]) + whole == whole


def test_the_default_is_taken_before_anything_is_measured() -> None:
    learner = of([2.0, 1.0, NAN])
    assert learner.choice("key") == Choice(0, (0.0, 0.0, 0.0), Reason.PRIOR)
    first = learner.choice("key", 64)
    assert (first.incumbent, first.reason) == (0, Reason.EXPLORE)
    assert first.explore[1] > 0


def test_the_fastest_arm_is_found() -> None:
    learner = of([1.0, 1.0, 1.0, NAN])
    for version in range(30):
        batch(learner, [1.0, 0.9, 1.2, 0.7], version=version)
    assert learner.choice("key").incumbent == 3


def test_two_arms_that_take_the_same_are_not_tried_for_ever() -> None:
    learner = of([1.0, 1.0])
    counts = [batch(learner, [1.0, 1.0], version=version)[1] for version in range(100)]
    assert sum(counts[50:]) < 0.04 * 50 * 64
    assert learner.choice("key").incumbent == 0


def test_an_arm_three_times_slower_is_quarantined_until_a_change() -> None:
    learner = of([1.0, 1.0, 1.1])
    for version in range(10):
        batch(learner, [1.0, 3.2, 1.1], version=version)
    assert [arm.state for arm in learner.why("key").candidates] == ["", "quarantined", ""]
    assert learner.choice("key", 64).explore[1] == 0
    for version in range(10, 14):
        batch(learner, [4.0, 0.9, 4.0], version=version)
    assert learner.choice("key").incumbent == 1


@pytest.mark.parametrize("held", [500, 4000])
def test_a_flip_is_answered_within_200_calls(held: int) -> None:
    before, after = [1.0, 1.4, 1.6, 2.0, 1.5, 1.8], [1.6, 1.4, 1.0, 2.0, 1.5, 1.8]
    learner = of(before)
    for version in range(held // 32):
        batch(learner, before, 32, version)
    assert learner.choice("key").incumbent == 0
    calls, reasons = 0, set()
    while learner.choice("key").incumbent != 2:
        reasons.add(learner.choice("key", 32).reason)
        batch(learner, after, 32, calls)
        calls += 32
        assert calls <= 200
    assert Reason.DRIFT in reasons
    assert learner.why("key").changes == 1


@pytest.mark.parametrize("slow", [1.9, 2.02])
@pytest.mark.parametrize("factor", [1.9, 0.5])
def test_arms_up_to_twice_as_slow_are_tried_where_the_incumbent_takes_longer(slow: float, factor: float) -> None:
    """A neighbour says of each what it took before, and two more are faster than the incumbent then."""
    before, after = [1.0, 1.4, 1.4, slow, 2.3], [factor, 1.4, 1.4, 1.0, 2.3]
    learner = Learner()
    learner.add("near", names(5), before)
    for arm, seconds in enumerate(before):
        learner.observe("near", arm, Samples.of([math.log2(seconds)] * 64))
    learner.counted("near", 320)
    learner.add("key", names(5), before, ["near"])
    for version in range(40):
        batch(learner, before, 16, version)
    counts = [batch(learner, after, 16, version) for version in range(12)]
    assert learner.why("key").changes == 1
    tried = [sum(of_arm) > 0 for of_arm in zip(*counts, strict=True)]
    assert tried[3:] == [factor > 1, False]
    assert learner.choice("key").incumbent == (3 if factor > 1 else 0)


def test_a_change_is_noticed_when_the_incumbent_has_just_changed() -> None:
    """Where the new one takes as much less as it was believed to, nothing has changed."""
    learner = of([1.0, 1.0])
    for version in range(20):
        batch(learner, [1.0, 0.5], version=version)
    assert learner.choice("key").incumbent == 1
    assert learner.why("key").changes == 0
    while learner.choice("key").incumbent == 1:
        version += 1
        batch(learner, [0.4, 0.5], version=version)
    assert learner.why("key").changes == 0
    batch(learner, [0.8, 1.0], version=version)
    assert learner.why("key").changes == 1


def test_what_slows_all_arms_alike_changes_no_choice() -> None:
    times = [1.0, 1.3, 0.8, 1.1]
    steady, slowed = of([1.0] * 4), of([1.0] * 4)
    for version in range(20):
        batch(steady, times, version=version)
        batch(slowed, [seconds * 1.02**version for seconds in times], version=version)
    assert steady.choice("key").incumbent == slowed.choice("key").incumbent == 2


def test_predicted_to_take_twice_as_long_is_pruned_but_for_one() -> None:
    learner = of([5.0, 1.0, 1.5, 2.5, 3.0, NAN])
    assert [arm.state for arm in learner.why("key").candidates] == ["pruned", "", "", "pruned", "pruned", ""]
    takes = [5.0, 1.0, 1.5, 2.5, 3.0, 1.2]
    counts = [batch(learner, takes, version=version) for version in range(40)]
    assert [sum(arm) > 0 for arm in zip(*counts, strict=True)] == [True, True, True, True, False, True]


def test_nothing_is_pruned_once_the_predictions_are_as_wrong() -> None:
    """The arm that is there to show it takes a fifth of what was predicted."""
    learner = of([1.0, 1.1, 2.5, 3.0, 3.5])
    for version in range(60):
        batch(learner, [1.0, 1.1, 0.5, 0.4, 3.5], version=version)
    assert learner.choice("key").incumbent == 3


def test_pinned_is_pinned() -> None:
    learner = of([1.0, 1.0, 1.0])
    learner.pin("key", 1)
    for version in range(20):
        batch(learner, [1.0, 5.0, 0.5], version=version)
        assert learner.choice("key", 64) == Choice(1, (0.0, 0.0, 0.0), Reason.PINNED)
    learner.pin("key", None)
    for version in range(20):
        batch(learner, [1.0, 5.0, 0.5], version=version)
    assert learner.choice("key").incumbent == 2


def test_explored_zero_tries_nothing() -> None:
    learner = of([1.0, 0.1], Settings(explored=0))
    for version in range(20):
        assert not any(learner.choice("key", 64).explore)
        batch(learner, [1.0, 0.1], version=version)
    assert learner.choice("key").incumbent == 0


def test_what_a_neighbour_found_is_tried_first() -> None:
    learner = Learner()
    learner.add("key", names(4), [1.0] * 4)
    for version in range(20):
        batch(learner, [1.0, 1.0, 1.0, 0.6], version=version)
    for other, near in (("near", ["key"]), ("far", [])):
        learner.add(other, names(4), [2.0] * 4, near)
    assert learner.choice("far", 16).explore[1] > 0
    near_by = learner.choice("near", 16).explore
    assert near_by[3] == max(near_by) > near_by[1]
    low, high = ([arm.mean for arm in learner.why(name).candidates] for name in ("near", "far"))
    assert low[3] < 0.75 * high[3]


def test_a_neighbour_counts_for_less_than_what_was_measured_here() -> None:
    """Predictions are right there and wrong here. After a change here, of all arms alike, they are still wrong."""
    learner = Learner()
    learner.add("near", names(2), [3.0, 1.0])
    learner.add("key", names(2), [3.0, 1.0], ["near"])
    for seconds in (3.0, 1.0):
        learner.observe("near", seconds == 1.0, Samples.of([math.log2(seconds)] * 100))
    learner.counted("near", 200)
    for version in range(40):
        batch(learner, [1.0, 2.0] if version < 20 else [1.5, 3.0], version=version)
        assert version < 10 or learner.choice("key").incumbent == 0
    assert learner.why("key").changes > 0


def test_a_wrong_file_is_noticed() -> None:
    """It has the slowest for the fastest, and was measured when that took half."""
    learner = of([1.0, 1.0, 1.0, 1.0])
    learner.recall("key", [(1.0, 0.02, 500), (0.9, 0.02, 500), None, (0.5, 0.02, 500)], 3)
    assert learner.choice("key") == Choice(3, (0.0,) * 4, Reason.FILE)
    for version in range(30):
        batch(learner, [1.0, 0.7, 0.9, 1.4], version=version)
    assert learner.choice("key").incumbent == 1


def test_a_batch_of_few_calls_is_no_reference_to_tell_a_change_by() -> None:
    """The first batch times one call, which takes half as long again; the others many."""
    learner = of([1.0])
    for calls in (1, 30, 30, 30, 30):
        learner.observe("key", 0, Samples.of([math.log2(1.5 if calls == 1 else 1.0)] * calls))
        learner.counted("key", 64)
    assert learner.why("key").changes == 0


def test_an_arm_that_is_slow_by_a_file_alone_is_tried() -> None:
    learner = of([1.0, 1.0, 1.0, 1.0])
    learner.recall("key", [(4.0, 0.02, 500), (2.0, 0.02, 500), (1.5, 0.02, 500), (1.0, 0.02, 500)], 3)
    for version in range(40):
        batch(learner, [0.8, 1.0, 1.0, 1.0], version=version)
    assert learner.choice("key").incumbent == 0


def test_a_file_is_believed_of_arms_as_fast_as_the_chosen_one() -> None:
    """Three calls by another that are faster do not change that."""
    learner = of([1.0, 1.0, 1.0])
    learner.recall("key", [(1.05, 0.02, 500), (1.0, 0.02, 500), (1.05, 0.02, 500)], 1)
    learner.observe("key", 0, Samples.of([math.log2(0.9)] * 3))
    learner.observe("key", 1, Samples.of([math.log2(1.0)] * 20))
    learner.counted("key", 64)
    assert learner.choice("key").incumbent == 1


def test_why_says_what_is_known() -> None:
    learner = of([1.0, 2.0, NAN])
    for version in range(20):
        batch(learner, [1.2, 1.5, 0.6], version=version)
    found = learner.why("key")
    assert [arm.prior for arm in found.candidates] == [1.0, 2.0, None]
    assert found.candidates[2].mean == pytest.approx(0.6, rel=0.05)
    assert all(arm.low < arm.mean < arm.high for arm in found.candidates)
    assert (found.calls, found.choice.incumbent) == (20 * 64, 2)
    assert found.left >= 0


TIMES = st.floats(1e-7, 100.0)
BATCHES = st.lists(
    st.tuples(st.integers(16, 300), st.lists(TIMES, min_size=4, max_size=4)),
    min_size=1,
    max_size=25,
)
PRIORS = st.lists(st.one_of(TIMES, st.just(NAN)), min_size=4, max_size=4)


@given(PRIORS, BATCHES)
@settings(deadline=None, max_examples=60)
def test_the_guard_holds_for_any_times(prior: list[float], batches: list[tuple[int, list[float]]]) -> None:
    """What trials took longer is at most what the guard allows, but for those of the latest batch; and once it is not,
    nothing is tried before that is earned again. Probabilities are such, and the rest is the incumbent's."""
    learner = of(prior)
    spent = allowed = 0.0
    for version, (calls, seconds) in enumerate(batches):
        choice = learner.choice("key", calls)
        assert sum(choice.explore) <= DEFAULTS.share + 1e-9
        assert all(probability >= 0 for probability in choice.explore)
        assert choice.explore[choice.incumbent] == 0
        if spent >= allowed + DEFAULTS.advance:
            assert not any(choice.explore)
            assert choice.reason in (Reason.GUARD, Reason.EXPLOIT if choice.incumbent else Reason.KEPT)
        counts = batch(learner, seconds, calls, version)
        base = seconds[choice.incumbent] if counts[choice.incumbent] else None
        allowed += DEFAULTS.explored * calls
        for arm, count in enumerate(counts):
            if arm != choice.incumbent and count and base is not None:
                timed = count - count // DEFAULTS.run
                longer = min(seconds[arm] / base, DEFAULTS.hiccup) - 1
                spent += max(0.0, longer) * timed * DEFAULTS.run / (DEFAULTS.run - 1)


@given(st.lists(st.floats(0.5, 2.0), min_size=4, max_size=4), st.integers(16, 256), st.integers(5, 40))
@settings(deadline=None, max_examples=50)
def test_the_guard_is_never_broken_by_arms_up_to_twice_as_slow(seconds: list[float], calls: int, batches: int) -> None:
    seconds = [1.0, *seconds[1:]]
    learner = of([1.0] * 4)
    spent = 0.0
    for version in range(batches):
        choice = learner.choice("key", calls)
        counts = batch(learner, seconds, calls, version)
        held = min(1.0, seconds[choice.incumbent])
        for arm, count in enumerate(counts):
            if arm != choice.incumbent:
                spent += max(0.0, seconds[arm] / held - 1) * count
        assert spent <= DEFAULTS.explored * calls * (version + 1) + DEFAULTS.advance


@given(PRIORS, BATCHES, BATCHES)
@settings(deadline=None, max_examples=40)
def test_a_restored_learner_makes_the_same_choices(
    prior: list[float],
    before: list[tuple[int, list[float]]],
    after: list[tuple[int, list[float]]],
) -> None:
    """Also by way of JSON; and so does another that was told the same."""
    learner, twin = of(prior), of(prior)
    for version, (calls, seconds) in enumerate(before):
        batch(learner, seconds, calls + 1, version)
        batch(twin, seconds, calls + 1, version)
    written = msgspec.json.encode(learner.state())
    read = msgspec.json.decode(written, type=dict[int | str, KeyState])
    other = Learner()
    other.restore(read)
    for version, (calls, seconds) in enumerate(after):
        choices = [one.choice("key", calls + 1) for one in (learner, twin, other)]
        assert choices[0] == choices[1] == choices[2]
        for one in (learner, twin, other):
            batch(one, seconds, calls + 1, version)
    assert learner.state() == twin.state() == other.state()


def test_a_table_says_by_how_much_predictions_are_off() -> None:
    """Predicted 40, 36 and 20 us, and the first took 10: the second is expected to take 9, and is worth a trial."""
    learner = Learner()
    learner.add("key", ["a", "b", "c"], [40e-6, 36e-6, 20e-6])
    learner.recall("key", [(10e-6, 0.01, 500), None, None], 0)
    found = learner.why("key")
    assert [round(arm.mean * 1e6, 1) for arm in found.candidates] == [10.0, 9.0, 5.0]
    assert found.choice.incumbent == 0
    assert learner.choice("key", 1000).explore[2] > 0
