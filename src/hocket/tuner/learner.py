"""The learner of the tuner: which of its arms each key takes, from what calls took (docs/tuner.md).

An arm is a way to make a call, a key the calls that share a choice. Times are log2 of seconds: a difference of 1 is a
factor of 2. What is learned of an arm is how much longer it takes than the other arms of its key in the same batch of
calls, so that what slows all of them says nothing of any. Between two batches a choice is fixed. No clock, no
randomness: the same observations give the same choices.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from enum import Enum
from statistics import fmean

Name = int | str
"""Of a key, for the learner: whatever tells keys apart."""


class Reason(Enum):
    """Why a key takes the arm that it takes."""

    PRIOR = "nothing was measured yet"
    EXPLORE = "others that may be faster are tried beside it"
    EXPLOIT = "it is the fastest, and no other is worth a trial"
    KEPT = "it is the static policy's, and no other was proven faster"
    GUARD = "others are worth a trial, but trying has cost as much as it may"
    DRIFT = "what its calls take has changed, and all are tried anew"
    PINNED = "it was pinned"
    FILE = "it was the fastest in a file, and nothing was measured since"


@dataclass(frozen=True, slots=True)
class Settings:
    """Numbers of the learner. Those called fitted were fitted in the gym (benchmarks/tuner_gym.py), roughly.

    ``explored``: what trying may take, as a share of the time of all calls. ``advance``: calls by which that may be
    exceeded, at the beginning and after a change, until it is earned.
    """

    explored: float = 0.02  # issue 27: the guard
    advance: float = 48.0  # in the gym's table no job exceeded it (benchmarks/results/tuner_gym.md)
    kept: float = 20.0  # of the advance, for trials that take longer than planned; fitted
    run: int = 4  # calls of a trial, as a path leaves caches in another state; the first is not timed (online.WINDOW)
    part: float = 1 / 32  # of a batch for an arm, at least a trial; fitted
    share: float = 0.5  # of a batch for all trials, so that the incumbent is measured beside them as often
    careful: float = 2.0  # standard deviations by which a trial may take longer than expected, as planned; fitted
    spread: float = 0.5  # of predictions, two arms against each other: sim.md, 8 to 30 % off, sometimes a factor of 2
    nearby: float = 0.35  # by how much a neighbouring size may differ in what the prediction lacks; fitted
    recalled: float = 0.1  # of what a file says of an arm, at least: a factor of 1.07; chosen
    distrust: float = 1.5  # the same, as a share of what sets an arm apart from the one chosen there; chosen
    changed: float = 0.5  # a factor of 1.4: what a change does to an arm, and what neighbours are off besides; fitted
    restless: float = 0.07  # the same in 1000 calls without a change that was noticed; fitted
    retried: float = 0.5  # standard deviations that an arm may be faster than believed, where it is due anew; fitted
    unseen: float = 0.25  # of changes, for each that was noticed; fitted
    noise: float = 0.2  # of one call, before any was measured: 15 %
    certain: float = 0.01  # no mean is known better than to 0.7 %
    clipped: float = 4.0  # standard deviations: what is further off counts as so far, as hiccups of the machine are
    pruned: float = 2.0  # issue 27: what takes so much longer than the best is not tried, at first or after a change
    quarantined: float = 3.0  # issue 27
    hiccup: float = 16.0  # times longer than the incumbent: what is above is the machine's doing, and not charged
    indifferent: float = 0.005  # an expected gain that nobody measures, as a share of a call
    horizon: tuple[int, int] = (500, 4000)  # calls that a gain is for: as many as there were (Lindy), within these
    window: int = 16  # calls of a batch, at least; fitted
    memory: int = 32  # batches by which the CUSUM knows what is usual
    still: float = 0.07  # least deviation of such a step: 5 %
    slack: float = 1.5  # of the CUSUM, in deviations: for shifts of 3 of them (Page, Biometrika 1954); fitted
    alarm: float = 4.0  # with slack 1.5: a false alarm in 600 000 steps of normal noise (Siegmund's approximation)


@dataclass(frozen=True, slots=True)
class Samples:
    """Of log2 of seconds: how many, their mean, and the mean of their squares."""

    count: int
    mean: float
    squares: float

    @staticmethod
    def of(values: Sequence[float]) -> Samples:
        count = max(1, len(values))
        return Samples(len(values), sum(values) / count, sum(value * value for value in values) / count)

    def __add__(self, other: Samples) -> Samples:
        count = self.count + other.count
        part = other.count / max(1, count)
        mean = self.mean + (other.mean - self.mean) * part
        return Samples(count, mean, self.squares + (other.squares - self.squares) * part)

    @property
    def apart(self) -> float:
        """The sum of squared deviations from the mean."""
        return max(0.0, self.count * (self.squares - self.mean * self.mean))


@dataclass(frozen=True, slots=True)
class Choice:
    """What calls of a key take: each arm with the probability in ``explore``, and otherwise the incumbent."""

    incumbent: int
    explore: tuple[float, ...]
    reason: Reason


@dataclass(frozen=True, slots=True)
class Candidate:
    """What is known of an arm; seconds, with an interval of 95 %. ``prior``: as predicted, None where nothing was."""

    name: str
    prior: float | None
    mean: float
    low: float
    high: float
    samples: int
    state: str  # "", "pruned", or "quarantined"

    def __str__(self) -> str:
        mean, low, high = (f"{seconds * 1e6:.4g}" for seconds in (self.mean, self.low, self.high))
        prior = "no prediction" if self.prior is None else f"predicted {self.prior * 1e6:.4g} us"
        found = f"{mean} us [{low}, {high}], {self.samples} timed" if self.samples else "never timed"
        return ", ".join(filter(None, [f"{self.name}: {found}", prior, self.state]))


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a key takes what it takes. ``left``: calls' worth of time that trials may take now; ``changes`` noticed."""

    choice: Choice
    candidates: tuple[Candidate, ...]
    calls: int
    left: float
    changes: int


@dataclass(slots=True)
class ArmState:
    """Log2 of how much longer than the key's level: ``predicted``, and believed with a ``variance``."""

    name: str
    predicted: float | None
    mean: float
    variance: float
    samples: int = 0  # timed in this job
    recalled: int = 0  # and before, as a file says
    due: bool = False  # a trial, whatever it is expected to save
    quarantined: bool = False

    @property
    def known(self) -> int:
        return self.samples + self.recalled


@dataclass(slots=True)
class KeyState:
    """All that is known of a key. ``level``: log2 of seconds that arms' means are relative to, in the latest batch."""

    arms: list[ArmState]
    neighbours: list[Name]
    incumbent: int = 0
    pinned: int | None = None
    level: float = 0.0
    calls: int = 0
    waiting: int = 0  # calls since the last batch
    seen: dict[int, Samples] = field(default_factory=dict)  # what was timed in them
    since: int = 0  # calls since the beginning or the latest change
    pace: float = 0.0  # calls of a batch
    squares: float = 0.0  # of single calls, about the means of their batches
    freedom: int = 0  # degrees of freedom of these
    balance: float = 0.0  # calls' worth of time for trials
    settling: bool = True  # the advance may be spent
    changes: int = 0
    misled: bool = False  # predictions are not believed
    restored: bool = False  # nothing was measured since
    steps: int = 0  # of the CUSUM on the incumbent: a batch each
    reference: float = 0.0
    doubt: float = 0.0  # variance of the reference, as few calls made it
    wander: float = 0.0  # mean square of the deviations of steps from the reference
    latest: float = 0.0
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0])  # CUSUM upwards, downwards


@dataclass(frozen=True, slots=True)
class _Belief:
    mean: float
    variance: float


class Learner:
    """Told what calls took, it says what the next take. A batch is any number of ``observe``, then one ``counted``."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self._keys: dict[Name, KeyState] = {}

    def __contains__(self, key: Name) -> bool:
        return key in self._keys

    def add(self, key: Name, names: Sequence[str], prior: Sequence[float], neighbours: Iterable[Name] = ()) -> None:
        """A key with arms, of which the first is the default's, and the seconds predicted for each; NaN: for none.

        ``neighbours``: keys of which the arms with the same names are likely to be as much off their predictions.
        """
        assert len(names) == len(prior) > 0, (names, prior)
        s = self.settings
        logs = [None if math.isnan(seconds) else math.log2(seconds) for seconds in prior]
        known = [log for log in logs if log is not None]
        typical = fmean(known) if known else 0.0
        arms = []
        for name, log in zip(names, logs, strict=True):
            spread = s.spread if log is not None else 2 * s.spread
            arms.append(ArmState(name, log, typical if log is None else log, spread * spread))
        most = min(known, default=0.0) + math.log2(s.pruned)
        slow = [arm for arm in arms[1:] if arm.predicted is not None and arm.predicted > most]
        if slow:
            min(slow, key=lambda arm: arm.mean).due = True  # to see whether it is
        self._keys[key] = KeyState(arms, list(neighbours), balance=s.advance)

    def pin(self, key: Name, arm: int | None) -> None:
        """Take this arm always; None: no longer."""
        self._keys[key].pinned = arm

    def observe(self, key: Name, arm: int, samples: Samples) -> None:
        """Timed calls of the batch: of each the slowest rank's time."""
        seen = self._keys[key].seen
        seen[arm] = seen.get(arm, Samples(0, 0.0, 0.0)) + samples

    def counted(self, key: Name, calls: int) -> None:
        """So many calls were made, timed or not. That ends the batch, unless it has too few calls to say much: then the
        choice stays as it is."""
        s, state = self.settings, self._keys[key]
        state.waiting += calls
        if state.waiting < s.window:
            return
        calls, state.waiting = state.waiting, 0
        variance, found = self._variance(state), sorted(state.seen.items())
        seen = {arm: _without_hiccup(samples, variance) for arm, samples in found if samples.count}
        state.seen = {}
        state.calls += calls
        state.since += calls
        state.pace = (state.pace + calls) / 2 if state.pace else float(calls)
        unseen = s.unseen * state.changes / max(state.calls, 1000)  # a machine that has changed may again, unnoticed
        for arm in state.arms:
            arm.variance += (s.restless**2 / 1000 + unseen * s.changed**2) * calls
        state.balance += s.explored * calls
        if not seen:
            return
        state.restored = False
        if state.pinned is None:
            self._charge(state, seen)
        self._learn(state, seen)
        if state.incumbent in seen and self._has_changed(state, seen[state.incumbent]):
            self._forget(state)
        self._judge(state)

    def choice(self, key: Name, coming: int | None = None) -> Choice:
        """What calls of the next batch take. ``coming``: how many there will be; None: twice as many as in the latest.

        The expected cost of trials, were all arms as slow as they may be, is within what the guard leaves.
        """
        s, state = self.settings, self._keys[key]
        explore = [0.0] * len(state.arms)
        if state.pinned is not None:
            return Choice(state.pinned, tuple(explore), Reason.PINNED)
        left, share, refused = self._left(state), s.share, False
        beliefs = self._beliefs(state)
        most = max(coming, s.window) if coming else 2 * state.pace  # none before the first batch, unless it is said
        trial, chance = max(s.run, s.part * state.pace), 2 * s.run  # calls that dealing may give an arm besides
        for arm in self._wanted(state, beliefs) if s.explored else []:
            able = min(trial, share * most)
            if not able or able < min(s.run, most / 2):
                break
            worst = self._worst(state, beliefs, arm)
            paid = left / worst - chance if worst else able
            if paid < min(able, s.run):
                refused = True
                continue
            explore[arm] = min(able, paid) / most
            share -= explore[arm]
            left -= worst * (min(able, paid) + chance)
        return Choice(state.incumbent, tuple(explore), self._reason(state, any(explore), refused))

    def why(self, key: Name) -> Explanation:
        """What is known of each arm, and what follows from it."""
        state = self._keys[key]
        beliefs, candidates = self._beliefs(state), []
        for arm, belief, pruned in zip(state.arms, beliefs, self._pruned(state, beliefs), strict=True):
            wide = 1.96 * math.sqrt(belief.variance)
            mean, low, high = (2 ** (state.level + belief.mean + d) for d in (0.0, -wide, wide))
            said = "quarantined" if arm.quarantined else "pruned" if pruned else ""
            prior = None if arm.predicted is None else 2**arm.predicted
            candidates.append(Candidate(arm.name, prior, mean, low, high, arm.known, said))
        return Explanation(self.choice(key), tuple(candidates), state.calls, self._left(state), state.changes)

    def recall(self, key: Name, known: Sequence[tuple[float, float, int] | None], chosen: int) -> None:
        """What a file says of a key that was added: of each arm the mean of seconds, the standard deviation of log2 of
        that, and the number of samples. An arm is believed the less the further it is from the chosen one, so that each
        may be tried again: files can be wrong. By what predictions of the measured arms were off in the mean, they are
        taken to be off of the others.
        """
        s, state = self.settings, self._keys[key]
        pairs = [(arm, found) for arm, found in zip(state.arms, known, strict=True) if found is not None]
        if pairs:
            state.level = fmean(math.log2(seconds) - arm.mean for arm, (seconds, _, _) in pairs)
        for arm, (seconds, _, samples) in pairs:
            arm.mean, arm.recalled, arm.due = math.log2(seconds) - state.level, samples, False
        for arm, (_, deviation, _) in pairs:
            apart = abs(arm.mean - state.arms[chosen].mean)
            arm.variance = max(deviation, s.recalled, s.distrust * apart) ** 2
        state.incumbent, state.restored = chosen, True
        if (found := known[chosen]) is not None:
            state.steps, state.reference, state.doubt = 1, state.level + state.arms[chosen].mean, found[1] ** 2
            state.latest = state.reference

    def state(self) -> dict[Name, KeyState]:
        """All that was learned: a copy."""
        return deepcopy(self._keys)

    def restore(self, state: Mapping[Name, KeyState]) -> None:
        """Go on from there."""
        self._keys.update(deepcopy(dict(state)))

    # What is learned of a batch

    def _charge(self, state: KeyState, seen: Mapping[int, Samples]) -> None:
        """What trials took longer than the incumbent, in the same batch if it was timed there."""
        s, held = self.settings, state.arms[state.incumbent]
        base = seen[state.incumbent].mean if state.incumbent in seen else state.level + held.mean
        for arm, samples in seen.items():
            if arm != state.incumbent:
                longer = min(2 ** min(samples.mean - base, 60.0), s.hiccup) - 1
                state.balance -= max(0.0, longer) * samples.count * s.run / (s.run - 1)

    def _learn(self, state: KeyState, seen: Mapping[int, Samples]) -> None:
        """A normal posterior for each arm, relative to the level of this batch.

        The level is what most of the calls say of arms that are known well. All of what a batch says counts as of the
        arms then: they are compared with each other, and no two are surer of their difference than the calls made them.
        """
        s = self.settings
        variance = self._variance(state)
        for samples in seen.values():
            state.squares += min(samples.apart, 4 * samples.count * variance)
            state.freedom += samples.count - 1
        if state.incumbent in seen:
            sums = [0.0, 0.0]
            for number, samples in seen.items():
                arm = state.arms[number]
                weight = 1 / (variance / samples.count + arm.variance)
                sums[0] += weight
                sums[1] += weight * (samples.mean - arm.mean)
            state.level = sums[1] / sums[0]
        for number, samples in seen.items():
            arm = state.arms[number]
            expected = variance / samples.count + arm.variance
            far = s.clipped * math.sqrt(expected)
            gain = arm.variance / expected
            arm.mean += gain * max(-far, min(far, samples.mean - state.level - arm.mean))
            arm.variance = max(arm.variance * (1 - gain), s.certain * s.certain)
            arm.samples += samples.count
            arm.due = False

    def _variance(self, state: KeyState) -> float:
        """Of log2 of single calls, the first guess counting as 4 of them."""
        return (4 * self.settings.noise**2 + state.squares) / (4 + state.freedom)

    def _has_changed(self, state: KeyState, samples: Samples) -> bool:
        """A two-sided CUSUM on the incumbent's times, of a batch each, against the mean of the latest ones. Its unit is
        what steps have deviated by, or what follows from the few calls of this one and of those before."""
        s, value = self.settings, samples.mean
        sampling = self._variance(state) / samples.count
        state.steps += 1
        if state.steps == 1:
            state.reference = state.latest = value
            state.doubt = sampling
            return False
        deviation = max(s.still, math.sqrt(max(state.wander, sampling + state.doubt)))
        apart = (value - state.reference) / deviation
        state.sums = [max(0.0, state.sums[0] + apart - s.slack), max(0.0, state.sums[1] - apart - s.slack)]
        state.latest = value
        part = 1 / min(state.steps, s.memory)
        state.wander += (min(apart * apart, s.clipped * s.clipped) * deviation * deviation - state.wander) * part
        state.reference += (value - state.reference) * part
        state.doubt = (1 - part) ** 2 * state.doubt + part * part * sampling
        return max(state.sums) > s.alarm

    def _forget(self, state: KeyState) -> None:
        """After a change any arm may be the fastest. As likely as not what changed the incumbent changed all alike.
        Where it takes longer now, each arm that was not far slower is due for a trial."""
        s, before = self.settings, self._beliefs(state)
        most = before[state.incumbent].mean + math.log2(s.pruned)
        half = (state.latest - state.reference) / 2
        state.arms[state.incumbent].mean += half
        state.level -= half
        for number, (arm, belief) in enumerate(zip(state.arms, before, strict=True)):
            near = belief.mean - s.retried * math.sqrt(belief.variance) <= most
            arm.due = arm.due or (half > 0 and near and number != state.incumbent)
            arm.variance += s.changed * s.changed
            arm.quarantined = False
        state.changes += 1
        state.since = 0
        state.settling = True
        state.steps, state.wander, state.sums = 0, 0.0, [0.0, 0.0]

    def _judge(self, state: KeyState) -> None:
        """Who is the incumbent, who in quarantine, whether predictions are any good, and whether all is settled."""
        s, beliefs = self.settings, self._beliefs(state)
        measured = [number for number, arm in enumerate(state.arms) if arm.samples]
        best = min(measured, key=lambda number: beliefs[number].mean)
        held = beliefs[state.incumbent]
        ahead = held.mean - beliefs[best].mean
        sure = math.sqrt(held.variance + beliefs[best].variance)
        if state.pinned is None and best != state.incumbent and ahead > max(sure, s.certain):
            state.incumbent = best
            # The CUSUM goes on from what the new one is expected to take, so that a change in between shows. Steps
            # wander as much as before, since that is the machine's doing.
            state.reference -= ahead
            state.doubt += sure * sure
            state.steps, state.sums = min(state.steps, 1), [0.0, 0.0]
        for number in measured:
            arm, behind = state.arms[number], beliefs[number].mean - beliefs[state.incumbent].mean
            arm.quarantined = arm.quarantined or (arm.samples > 1 and behind > math.log2(s.quarantined))
            arm.due = arm.due and not arm.quarantined
        known = [arm for arm in state.arms if arm.samples > s.run and arm.predicted is not None]  # two trials
        off = [arm.mean - (arm.predicted or 0.0) for arm in known]
        most = max((abs(each - fmean(off)) for each in off), default=0.0)
        if most > math.log2(s.pruned) and not state.misled:  # as wrong as it would be of an arm that is pruned
            state.misled = True
            for arm in state.arms:
                arm.variance += 0.0 if arm.known else most * most
        state.settling = state.settling and bool(self._wanted(state, beliefs))

    # What follows

    def _beliefs(self, state: KeyState) -> list[_Belief]:
        """Of each arm: what was measured here, and what neighbours found of it. Neighbours count for less of an
        arm that was measured here, and after a change here, which may not be theirs."""
        own = [_Belief(arm.mean, arm.variance) for arm in state.arms]
        near = [self._keys[key] for key in state.neighbours if key in self._keys]
        for other in near:
            theirs = {arm.name: arm for arm in other.arms if arm.samples and arm.predicted is not None}
            pairs = [
                (number, arm.predicted, theirs[arm.name])
                for number, arm in enumerate(state.arms)
                if arm.predicted is not None and arm.name in theirs
            ]
            offs = [
                (number, predicted + arm.mean - (arm.predicted or 0.0), arm.variance + self.settings.nearby**2)
                for number, predicted, arm in pairs
            ]
            # What both have measured tells how their levels relate.
            both = [
                (state.arms[n].mean - mean, variance + state.arms[n].variance)
                for n, mean, variance in offs
                if state.arms[n].known
            ]
            weights = sum(1 / variance for _, variance in both)
            shift = sum(apart / variance for apart, variance in both) / weights if both else 0.0
            for number, mean, variance in offs:
                if state.arms[number].known or state.changes:
                    variance += self.settings.changed**2
                mine = own[number]
                gain = mine.variance / (mine.variance + variance)
                own[number] = _Belief(mine.mean + gain * (mean + shift - mine.mean), mine.variance * (1 - gain))
        return own

    def _wanted(self, state: KeyState, beliefs: Sequence[_Belief]) -> list[int]:
        """The arms of which trials are expected to save more than they take, those first that may save most.

        A trial saves what the arm is faster, if it is, in as many calls as there were (expected improvement: Jones,
        Schonlau and Welch 1998); it takes what the arm is slower, if it is.
        """
        s, held = self.settings, beliefs[state.incumbent]
        horizon = min(max(state.since, s.horizon[0]), s.horizon[1])
        found, pruned = [], self._pruned(state, beliefs)
        for number, (arm, belief) in enumerate(zip(state.arms, beliefs, strict=True)):
            if number == state.incumbent or arm.quarantined or (pruned[number] and not arm.due):
                continue
            apart = belief.mean - held.mean
            gain = _improvement(apart, math.sqrt(belief.variance + held.variance))
            loss = gain + apart
            gain, loss = gain * math.log(2), loss * math.log(2)
            worth = gain > s.indifferent and gain * horizon > loss * max(s.run, s.part * state.pace)
            if worth or arm.due:
                found.append((-gain, number))
        return [number for _, number in sorted(found)]

    def _pruned(self, state: KeyState, beliefs: Sequence[_Belief]) -> list[bool]:
        """Arms that were never tried, and are predicted to take too long, while predictions are of this machine."""
        most = (
            math.inf
            if state.misled or state.changes
            else min(belief.mean for belief in beliefs) + math.log2(self.settings.pruned)
        )
        return [
            belief.mean > most and not arm.known and arm.predicted is not None
            for arm, belief in zip(state.arms, beliefs, strict=True)
        ]

    def _worst(self, state: KeyState, beliefs: Sequence[_Belief], number: int) -> float:
        """Of a call of a trial: what it may take longer, as a share of the incumbent's. Of an arm that was never tried
        in this job, that is as much as would have it quarantined, unless it is expected to take longer."""
        s, held, belief = self.settings, beliefs[state.incumbent], beliefs[number]
        apart = 2 ** (belief.mean - held.mean)
        likely = apart * 2 ** (s.careful * math.sqrt(belief.variance + held.variance))
        most = min(likely, s.quarantined) if state.arms[number].samples else s.quarantined
        return max(1.0, apart, most) - 1

    def _left(self, state: KeyState) -> float:
        """The advance is for the beginning and for changes."""
        return max(0.0, state.balance - (self.settings.kept if state.settling else self.settings.advance))

    def _reason(self, state: KeyState, explores: bool, refused: bool) -> Reason:
        if explores:
            return Reason.DRIFT if state.settling and state.changes else Reason.EXPLORE
        if refused:
            return Reason.GUARD
        if state.restored:
            return Reason.FILE
        if not state.arms[state.incumbent].known:
            return Reason.PRIOR
        return Reason.EXPLOIT if state.incumbent else Reason.KEPT


def _without_hiccup(samples: Samples, variance: float) -> Samples:
    """Where they vary as if one had taken far too long, the others: what a machine does besides only slows calls."""
    count = samples.count
    usual = (count - 1) * variance
    if count < 2 or samples.apart < 9 * usual:  # three standard deviations
        return samples
    apart = math.sqrt((samples.apart - usual) * count / (count - 1))
    mean = samples.mean - apart / count
    return Samples(count - 1, mean, mean * mean + variance)


def _improvement(apart: float, deviation: float) -> float:
    """The expected positive part of how much less a normal value is than 0."""
    if deviation <= 0:
        return max(0.0, -apart)
    z = apart / deviation
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return max(0.0, deviation * density - apart * math.erfc(z / math.sqrt(2)) / 2)
