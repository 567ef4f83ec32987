"""The gym of the tuner: jobs of thousands of calls on machines that are tables, with noise and with drift.

A *job* says what each arm of each key takes, what was predicted, and from which call on it takes something else. A
*world* is one run of it, from a seed: in which order keys are called, and what slows each call besides. What a policy
chose is held against an oracle that knows the fastest arm of every call: the regret is the part by which it took
longer. Noise is of the machine, so that it counts in what a policy is told, and not in what it is charged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hocket.tuner.learner import Choice, Learner, Samples, Settings

Array = NDArray[np.float64]

CALLS = 12_000
"""Of a job (issue 27)."""

GOLDEN = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio: its multiples, modulo 2**64, fall evenly (Knuth, volume 3, 6.4: Fibonacci hashing)."""


@dataclass(frozen=True, slots=True)
class Noise:
    """What slows calls besides their arm. ``single``: the standard deviation of log2 of each call by itself. A part
    ``hiccups`` of calls takes from 2 times as long, by a Pareto distribution of exponent 1. ``common``: the standard
    deviation of log2 of what slows all arms alike, for some ``lasting`` calls. ``switch``: the part that the first call
    by another arm than the one before takes longer.
    """

    single: float = 0.15
    hiccups: float = 0.01
    common: float = 0.1
    lasting: float = 200.0
    switch: float = 0.05


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Other work on the machine, now and then: an arm takes up to ``factor`` times as long in calls of ``keys``.

    How much of the factor meets an arm is in ``meets``, from 0 to 1. It lasts some ``lasting`` calls, and is away for
    as long.
    """

    keys: tuple[int, ...]
    meets: Array
    factor: float = 2.0
    lasting: float = 1500.0


@dataclass(frozen=True)
class Job:
    """``seconds`` by phase, key and arm, where phases begin at the calls ``starts``; ``prior`` by key and arm, NaN
    where nothing is predicted. Arm 0 is the default. ``weights``: how often each key is called. ``near``: of each
    key those of neighbouring sizes."""

    name: str
    keys: tuple[str, ...]
    arms: tuple[str, ...]
    seconds: Array
    prior: Array
    starts: tuple[int, ...] = (0,)
    weights: tuple[float, ...] = ()
    near: tuple[tuple[int, ...], ...] = ()
    noise: Noise = Noise()
    neighbour: Neighbour | None = None

    def __post_init__(self) -> None:
        shape = (len(self.starts), len(self.keys), len(self.arms))
        assert self.seconds.shape == shape, (self.seconds.shape, shape)
        assert self.prior.shape == shape[1:], (self.prior.shape, shape)


class World:
    """One run of a job. ``noise``: another number gives the same calls on the same machine, otherwise noisy (A/A)."""

    def __init__(self, job: Job, seed: int, noise: int = 0, calls: int = CALLS) -> None:
        self.job, self.calls = job, calls
        rng = np.random.default_rng([seed, 0])
        weights = np.array(job.weights or [1.0] * len(job.keys))
        self.keys: NDArray[np.intp] = rng.choice(len(job.keys), calls, p=weights / weights.sum())
        phases = np.searchsorted(np.array(job.starts), np.arange(calls), side="right") - 1
        self.true: Array = job.seconds[phases, self.keys]
        if job.neighbour is not None:
            here = np.isin(self.keys, job.neighbour.keys) & _comes_and_goes(rng, calls, job.neighbour.lasting)
            self.true = self.true * np.where(here[:, None], 1 + (job.neighbour.factor - 1) * job.neighbour.meets, 1.0)
        self.slowed: Array = 2 ** _noise(np.random.default_rng([seed, 1, noise]), job.noise, calls)

    def oracle(self) -> Array:
        """The seconds of each call by its fastest arm."""
        fastest: Array = self.true.min(axis=1)
        return fastest


def _comes_and_goes(rng: np.random.Generator, calls: int, lasting: float) -> NDArray[np.bool_]:
    lengths = np.maximum(1, rng.exponential(lasting, 2 + int(4 * calls / lasting))).astype(int)
    turns = np.repeat(np.arange(len(lengths)) % 2 == 1, lengths)
    return np.resize(turns, calls) if len(turns) < calls else turns[:calls]


def _noise(rng: np.random.Generator, noise: Noise, calls: int) -> Array:
    """Log2 of the factor by which each call takes longer."""
    keep = np.exp(-1 / noise.lasting)
    steps = rng.normal(0, noise.common * np.sqrt(1 - keep * keep), calls)
    steps[0] = rng.normal(0, noise.common)
    common = np.empty(calls)
    level = 0.0
    for number, step in enumerate(steps.tolist()):
        level = keep * level + step
        common[number] = level
    hiccups = np.where(rng.random(calls) < noise.hiccups, 1 + np.minimum(np.log2(1 + rng.pareto(1.0, calls)), 8), 0.0)
    single: Array = rng.normal(0, noise.single, calls)
    return common + single + hiccups


class Policy(Protocol):
    """What chooses arms. After every ``every`` calls it may change its mind; it is told of each call when it was made,
    with NaN seconds where it was not timed."""

    every: int

    def begin(self, job: Job) -> None: ...
    def arm(self, key: int) -> int: ...
    def took(self, key: int, arm: int, seconds: float) -> None: ...
    def merge(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Played:
    """What a policy did. ``took``: the true seconds of each call by the arm it took; ``best``: by the fastest."""

    arms: NDArray[np.intp]
    took: Array
    best: Array

    @property
    def regret(self) -> float:
        return float(self.took.sum() / self.best.sum() - 1)

    def regrets(self) -> Array:
        """After each call: the time lost until then, as a share of the oracle's time for all calls."""
        lost: Array = np.cumsum(self.took - self.best) / self.best.sum()
        return lost


def play(world: World, policy: Policy) -> Played:
    job = world.job
    policy.begin(job)
    latest = [-1] * len(job.keys)
    arms = np.empty(world.calls, np.intp)
    took = np.empty(world.calls)
    keys, slowed = world.keys.tolist(), world.slowed.tolist()
    for number, key in enumerate(keys):
        arm = policy.arm(key)
        seconds = float(world.true[number, arm])
        switches = latest[key] not in (arm, -1)
        if switches:
            seconds *= 1 + job.noise.switch
        arms[number], took[number] = arm, seconds
        policy.took(key, arm, float("nan") if switches else seconds * slowed[number])
        latest[key] = arm
        if (number + 1) % policy.every == 0:
            policy.merge()
    return Played(arms, took, world.oracle())


# ---------------------------------------------------------------------------------------------------------------
# Policies


class Fixed:
    """One arm for each key, whatever happens."""

    every = 1 << 30

    def __init__(self, arms: Sequence[int]) -> None:
        self.arms = list(arms)

    def begin(self, job: Job) -> None:
        assert len(self.arms) == len(job.keys)

    def arm(self, key: int) -> int:
        return self.arms[key]

    def took(self, key: int, arm: int, seconds: float) -> None:
        pass

    def merge(self) -> None:
        pass


def default(job: Job) -> Fixed:
    """What the static policy takes."""
    return Fixed([0] * len(job.keys))


def best_single(world: World) -> Fixed:
    """One arm for all keys: the one with which this job took least, known only afterwards."""
    return Fixed([int(world.true.sum(axis=0).argmin())] * len(world.job.keys))


def offline_table(world: World, samples: int = 20) -> Fixed:
    """What was the fastest in so many calls of each arm, on a quiet machine, before the job."""
    noise = world.job.noise
    rng = np.random.default_rng([world.calls, samples])
    shape = (samples, *world.job.seconds[0].shape)
    measured = np.log2(world.job.seconds[0]) + rng.normal(0, noise.single, shape).mean(axis=0)
    return Fixed(measured.argmin(axis=1).tolist())


def prior_greedy(job: Job) -> Fixed:
    """What is predicted to be the fastest; the default where nothing is."""
    return Fixed(np.where(np.isnan(job.prior), np.inf, job.prior).argmin(axis=1).tolist())


class UCB:
    """UCB1 (Auer, Cesa-Bianchi and Fischer 2002) for each key, on log2 of seconds, without predictions: told of each
    call at once. ``width`` of its intervals is in log2: with the 1 that its proof has for rewards of that range it
    explores several times as long."""

    every = 1 << 30

    def __init__(self, width: float = 0.5) -> None:
        self.width = width

    def begin(self, job: Job) -> None:
        self.counts = [[0] * len(job.arms) for _ in job.keys]
        self.means = [[0.0] * len(job.arms) for _ in job.keys]

    def arm(self, key: int) -> int:
        counts = self.counts[key]
        if 0 in counts:
            return counts.index(0)
        scale = 2 * np.log(sum(counts)) * self.width**2
        bounds = [mean - (scale / count) ** 0.5 for mean, count in zip(self.means[key], counts, strict=True)]
        return bounds.index(min(bounds))

    def took(self, key: int, arm: int, seconds: float) -> None:
        known = self.counts[key][arm] > 0
        if seconds != seconds and known:
            return
        self.counts[key][arm] += 1
        # The first call of all by an arm is never timed: it counts as fast until another is.
        value = float(np.log2(seconds)) if seconds == seconds else min(self.means[key], default=0.0)
        self.means[key][arm] += (value - self.means[key][arm]) / self.counts[key][arm]

    def merge(self) -> None:
        pass


class Tuned:
    """The tuner's learner, in the place of the runtime: deals arms as its choices say, and merges every so many calls.

    ``dealt`` keeps what each key's calls were to take besides trials, by call.
    """

    def __init__(self, settings: Settings | None = None, every: int = 64) -> None:
        self.every, self.settings = every, settings or Settings()

    def begin(self, job: Job) -> None:
        self.learner = Learner(self.settings)
        near = job.near or ((),) * len(job.keys)
        for key in range(len(job.keys)):
            self.learner.add(key, job.arms, job.prior[key].tolist(), near[key])
        self.calls = [0] * len(job.keys)
        self.counts = [0] * len(job.keys)
        self.timed: list[dict[int, list[float]]] = [{} for _ in job.keys]
        self.incumbents: list[int] = []
        self._choose()

    def arm(self, key: int) -> int:
        choice = self.choices[key]
        self.incumbents.append(choice.incumbent)
        return dealt(choice, self.calls[key] // self.settings.run)

    def took(self, key: int, arm: int, seconds: float) -> None:
        self.counts[key] += 1
        self.calls[key] += 1
        if seconds == seconds:
            self.timed[key].setdefault(arm, []).append(float(np.log2(seconds)))

    def merge(self) -> None:
        for key, timed in enumerate(self.timed):
            for arm, values in timed.items():
                self.learner.observe(key, arm, Samples.of(values))
            self.learner.counted(key, self.counts[key])
            timed.clear()
        self._choose()

    def _choose(self) -> None:
        calls = sum(self.counts)
        shares = [count / calls if calls else 1 / len(self.counts) for count in self.counts]
        coming = [max(1, round(self.every * share)) for share in shares]
        self.choices = [self.learner.choice(key, coming[key]) for key in range(len(self.counts))]
        self.counts = [0] * len(self.counts)


def dealt(choice: Choice, run: int) -> int:
    """The arm of a run of calls, by its number: multiples of the golden ratio, so that each arm is met as often as its
    probability says but for one run or two, in any number of runs."""
    place = (run + 1) * GOLDEN % 2**64 / 2**64
    for arm, probability in enumerate(choice.explore):
        place -= probability
        if place < 0:
            return arm
    return choice.incumbent


@dataclass(frozen=True, slots=True)
class Guarded:
    """Of the key that came nearest to its limit, when it did, in calls of the default: what trials had taken longer
    than the default and than the incumbent, and what they may."""

    key: int
    spent: float
    allowed: float


def guard(world: World, played: Played, incumbents: Sequence[int], settings: Settings) -> Guarded:
    """Whether trials ever took more than the guard allows, in the true seconds of the machine."""
    held = np.array(incumbents)
    rows = np.arange(world.calls)
    default, kept = world.true[:, 0], world.true[rows, held]
    base = np.minimum(default, kept)
    longer = np.where(played.arms != held, np.maximum(0, world.true[rows, played.arms] / base - 1), 0.0)
    worst = Guarded(0, 0.0, 1.0)
    for key in range(len(world.job.keys)):
        of = world.keys == key
        spent = np.cumsum(longer[of])
        allowed = settings.explored * np.arange(1, len(spent) + 1) + settings.advance
        if len(spent):
            at = int((spent - allowed).argmax())
            if spent[at] - allowed[at] > worst.spent - worst.allowed or worst.spent == 0:
                worst = Guarded(key, float(spent[at]), float(allowed[at]))
    return worst


# ---------------------------------------------------------------------------------------------------------------
# Drift


def flipping(job: Job, times: int = 2, calls: int = CALLS) -> Job:
    """The winner flips: after equal parts of the job, of each key the fastest arm takes as long as another did, and
    that one as little as the fastest. The other is the slowest that took up to twice as long, or the second
    if none did."""
    phases = [job.seconds[0]]
    for _ in range(times):
        seconds = phases[-1].copy()
        for row in seconds:
            order = row.argsort()
            other = order[max(1, int((row <= 2 * row.min()).sum()) - 1)]
            row[order[0]], row[other] = row[other], row[order[0]]
        phases.append(seconds)
    starts = tuple(calls * part // (times + 1) for part in range(times + 1))
    return replace(job, name=f"{job.name}, winner flips", seconds=np.stack(phases), starts=starts)
