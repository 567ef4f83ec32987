"""The tuner's learner against others, in jobs of 12 000 calls: ``python benchmarks/tuner_gym.py``.

Jobs replay tables: NCCL and MSCCL on an NDv4, as published (``sim_paper.py``), and programs of the library that are
simulated, each of which takes more or less at each size than is predicted, by a factor that policies do not know, and
that is another with each seed. Without drift; with winners that flip; with a link that becomes slow; with a neighbour
that slows what lies between 2 and 64 MB.

Every policy plays the same worlds. A/A: the learner plays each world twice, otherwise noisy. What is claimed of two
policies must differ by three times the standard error of that. ``--plot FILE.svg`` draws regrets over calls.
``--first 200 --seeds 60 --policies``: the learner by itself, in worlds that its numbers were not fitted on.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sim_paper import NDV4, rings

from hocket import Program
from hocket.algorithms import all_pairs, hierarchical, recursive_doubling, recursive_halving, ring, swing, two_level
from hocket.sim import Simulator
from hocket.topology import ndv4
from hocket.tunables import show_size
from hocket.tuner import gym
from hocket.tuner.gym import Array, Job, Neighbour, Policy, Tuned, World, play
from hocket.tuner.learner import Settings

KB, MB = 1 << 10, 1 << 20

PREDICTED = {
    1 * KB: (17.1, 12.8),
    16 * KB: (23.6, 15.4),
    64 * KB: (30.7, 19.9),
    256 * KB: (31.4, 25.1),
    1 * MB: (34.9, 34.6),
    4 * MB: (106.9, 83.2),
    16 * MB: (253.9, 234.7),
    32 * MB: (377.7, 377.7),
}
"""What sim_paper.py predicts for NDV4, us: benchmarks/results/sim.md."""

OFF = 0.25, 0.15
"""Log2, the standard deviations of what simulated programs take against what is predicted: of a program, and of each of
its sizes. Together 0.3: sim.md has 8 to 30 %, and errors that are alike at neighbouring sizes."""


# ---------------------------------------------------------------------------------------------------------------
# Jobs


def neighbours(count: int) -> tuple[tuple[int, ...], ...]:
    """Keys in the order of sizes, next to each other."""
    return tuple(tuple(n for n in (key - 1, key + 1) if 0 <= n < count) for key in range(count))


def published() -> Job:
    sizes = list(PREDICTED)
    seconds = np.array([NDV4[size] for size in sizes]) * 1e-6
    prior = np.array([PREDICTED[size] for size in sizes]) * 1e-6
    keys = tuple(show_size(size) for size in sizes)
    return Job("NDv4, published", keys, ("NCCL", "MSCCL"), seconds[None], prior, near=neighbours(len(sizes)))


@cache
def arms_of(nodes: int) -> dict[str, tuple[Program, str]]:
    """The rings first."""
    ranks = 8 * nodes
    few, many = (rings(nodes, 8, n) if nodes > 1 else ring.all_reduce(ranks, instances=8 * n) for n in (1, 2))
    made: dict[str, tuple[Program, str]] = {"rings Simple": (many, "Simple")}
    programs: dict[str, Program] = {
        "few rings": few,
        "rings": many,
        "recursive doubling": recursive_doubling.all_reduce(ranks),
        "recursive halving r=4": recursive_halving.all_reduce(ranks, instances=4),
        "swing r=4": swing.all_reduce(ranks, instances=4),
    }
    if nodes == 1:
        programs["all pairs"] = all_pairs.all_reduce(ranks)
    else:
        node_of = tuple(rank // 8 for rank in range(ranks))
        programs["hierarchical r=4"] = hierarchical.all_reduce(nodes, 8, parallel=2, instances=4)
        programs["two-level ring"] = two_level.ring_all_reduce(node_of)
    for name, program in programs.items():
        for protocol in ("LL", "LL128"):
            made[f"{name} {protocol}"] = program, protocol
    return made


SIZES = (64 * KB, MB, 8 * MB, 32 * MB)


@cache
def times(nodes: int, slow: bool) -> Array:
    """Seconds by size and arm; ``slow``: where a NIC of each node has a quarter of its bandwidth."""
    arms, machine = arms_of(nodes), ndv4(nodes)
    if slow:
        links = [
            replace(link, bandwidth=link.bandwidth / 4) if link.name == "NIC 0 out" else link
            for link in machine.node_links
        ]
        machine = replace(machine, node_links=tuple(links))
    found = np.empty((len(SIZES), len(arms)))
    for number, (program, protocol) in enumerate(arms.values()):
        simulator = Simulator(program.compile(opcodes=True, slots=8), machine)
        found[:, number] = [simulator.predict(size, protocol).time * 1e-6 for size in SIZES]
    return found


RINGS = 5
"""Of the arms: what the default takes the best of, as NCCL does by its own model."""


def simulated(nodes: int, seed: int, slow: bool = False) -> Job:
    """``slow``: from a third to two thirds of it, a NIC of each node. The default is the ring that is predicted to be
    the fastest at each size, which is there a second time."""
    prior = times(nodes, False)
    rng = np.random.default_rng([nodes, seed])
    off = 2 ** (rng.normal(0, OFF[0], prior.shape[1]) + rng.normal(0, OFF[1], prior.shape))
    chosen = prior[:, :RINGS].argmin(axis=1)[:, None]

    def with_default(table: Array) -> Array:
        return np.concatenate([np.take_along_axis(table, chosen, 1), table], axis=1)

    phases = [with_default(times(nodes, now) * off) for now in ((False, True, False) if slow else (False,))]
    starts = (0, gym.CALLS // 3, 2 * gym.CALLS // 3)[: len(phases)]
    keys, names = tuple(show_size(size) for size in SIZES), ("default", *arms_of(nodes))
    name = f"NDv4 x {nodes}, simulated{', slow link' if slow else ''}"
    return Job(name, keys, names, np.stack(phases), with_default(prior), starts, near=neighbours(len(SIZES)))


def noisy(job: Job) -> Job:
    """Which arms a neighbour meets, and how much: drawn once. The first is met in full."""
    meets = np.random.default_rng(7).uniform(0.2, 1.0, len(job.arms))
    meets[0] = 1.0
    keys = tuple(n for n, size in enumerate(SIZES) if 2 * MB <= size <= 64 * MB)
    return replace(job, name=f"{job.name}, noisy neighbour", neighbour=Neighbour(keys, meets))


def alone(job: Job, key: int) -> Job:
    """One key of a job."""
    name = f"{job.name}, {job.keys[key]} only"
    part = slice(key, key + 1)
    return replace(job, name=name, keys=job.keys[part], seconds=job.seconds[:, part], prior=job.prior[part], near=())


def misled(job: Job) -> Job:
    """Predictions that name the slowest as the fastest, and so on, among the arms that take up to three times as long
    as the fastest."""
    prior = job.prior.copy()
    for row, seconds in zip(prior, job.seconds[0], strict=True):
        order = seconds.argsort()
        close = order[: int((seconds <= 3 * seconds.min()).sum())]
        row[close] = seconds[close[::-1]]
    return replace(job, name=f"{job.name}, predicted the wrong way round", prior=prior)


Made = Callable[[int], Job]
"""A job for a seed."""


def jobs() -> list[Made]:
    """Those without drift first."""
    still: list[Made] = [
        lambda _: published(),
        lambda seed: alone(simulated(1, seed), 1),
        lambda seed: alone(simulated(2, seed), 2),
        lambda seed: simulated(1, seed),
        lambda seed: simulated(2, seed),
        lambda seed: misled(simulated(1, seed)),
    ]
    flipped: list[Made] = [partial(lambda made, seed: gym.flipping(made(seed)), made) for made in still]
    drift: list[Made] = [
        lambda seed: simulated(2, seed, slow=True),
        lambda seed: noisy(simulated(1, seed)),
        lambda seed: noisy(simulated(2, seed)),
    ]
    return [*still, *flipped, *drift]


# ---------------------------------------------------------------------------------------------------------------
# A recurrent learner


class RecurrentQ:
    """A small recurrent Q-network of the kind that DynamICCL sketches, in NumPy: a history for each key, and one
    network for all. It sees the key, its latest arm and what that took; an Elman layer of 32 units, trained through 8
    steps by Adam on batches of 16 replayed histories, every 16 calls; epsilon-greedy, from 1 to 0.02 in 2000 calls. The
    reward is how much less a call took than the key's calls do in the mean, in log2; nothing later is counted into it,
    as what an arm takes does not depend on the arm before. It is told of each call at once."""

    every = 1 << 30
    HIDDEN, STEPS, BATCH, TRAIN, RATE = 32, 8, 16, 16, 3e-3
    EXPLORE, LEAST = 2000, 0.02

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def begin(self, job: Job) -> None:
        self.rng = np.random.default_rng([self.seed, 99])
        self.keys, self.arms = len(job.keys), len(job.arms)
        inputs = self.keys + self.arms + 1
        scale = [
            (inputs, self.HIDDEN),
            (self.HIDDEN, self.HIDDEN),
            (1, self.HIDDEN),
            (self.HIDDEN, self.arms),
            (1, self.arms),
        ]
        self.weights = [self.rng.normal(0, 1, shape) / np.sqrt(shape[0] if shape[0] > 1 else 1e12) for shape in scale]
        self.moments = [[np.zeros(shape) for shape in scale] for _ in range(2)]
        self.trained = self.calls = 0
        self.hidden = np.zeros((self.keys, self.HIDDEN))
        self.inputs = [self._input(key, None, 0.0) for key in range(self.keys)]
        self.history: list[list[tuple[Array, int, float]]] = [[] for _ in range(self.keys)]
        self.means: list[float | None] = [None] * self.keys
        self.again: list[int | None] = [None] * self.keys

    def _input(self, key: int, arm: int | None, reward: float) -> Array:
        made = np.zeros(self.keys + self.arms + 1)
        made[key] = 1
        if arm is not None:
            made[self.keys + arm] = 1
        made[-1] = reward
        return made

    def arm(self, key: int) -> int:
        repeated = self.again[key]
        if repeated is not None:
            return repeated
        into, through, bias, out, shift = self.weights
        self.hidden[key] = np.tanh(self.inputs[key] @ into + self.hidden[key] @ through + bias[0])
        if self.rng.random() < max(self.LEAST, 1 - self.calls / self.EXPLORE):
            return int(self.rng.integers(self.arms))
        return int((self.hidden[key] @ out + shift[0]).argmax())

    def took(self, key: int, arm: int, seconds: float) -> None:
        self.calls += 1
        if seconds != seconds:  # the first by another arm is not timed: once more
            self.again[key] = arm
            return
        self.again[key] = None
        value = float(np.log2(seconds))
        mean = self.means[key]
        mean = value if mean is None else mean + (value - mean) / 100
        self.means[key] = mean
        reward = max(-2.0, min(2.0, mean - value))
        self.history[key].append((self.inputs[key], arm, reward))
        self.inputs[key] = self._input(key, arm, reward)
        if self.calls % self.TRAIN == 0:
            self._train()

    def merge(self) -> None:
        pass

    def _train(self) -> None:
        long = [history for history in self.history if len(history) >= self.STEPS]
        if not long:
            return
        parts = []
        for _ in range(self.BATCH):
            history = long[int(self.rng.integers(len(long)))]
            begin = int(self.rng.integers(max(0, len(history) - 1000), len(history) - self.STEPS + 1))
            parts.append(history[begin : begin + self.STEPS])
        into, through, bias, out, shift = self.weights
        slopes = [np.zeros_like(weight) for weight in self.weights]
        hidden = [np.zeros((self.BATCH, self.HIDDEN))]
        errors: list[Array] = []
        rows: NDArray[np.intp] = np.arange(self.BATCH)
        seen = [np.stack([part[step][0] for part in parts]) for step in range(self.STEPS)]
        for step in range(self.STEPS):
            hidden.append(np.tanh(seen[step] @ into + hidden[-1] @ through + bias))
            said = hidden[-1] @ out + shift
            error = np.zeros_like(said)
            arms = np.array([part[step][1] for part in parts])
            error[rows, arms] = said[rows, arms] - np.array([part[step][2] for part in parts])
            errors.append(error / self.BATCH)
        back = np.zeros((self.BATCH, self.HIDDEN))
        for step in reversed(range(self.STEPS)):
            slopes[3] += hidden[step + 1].T @ errors[step]
            slopes[4] += errors[step].sum(axis=0, keepdims=True)
            back = (back + errors[step] @ out.T) * (1 - hidden[step + 1] ** 2)
            slopes[0] += seen[step].T @ back
            slopes[1] += hidden[step].T @ back
            slopes[2] += back.sum(axis=0, keepdims=True)
            back = back @ through.T
        self.trained += 1
        for weight, slope, first, second in zip(self.weights, slopes, *self.moments, strict=True):
            first += 0.1 * (slope - first)
            second += 0.001 * (slope * slope - second)
            scaled = first / (1 - 0.9**self.trained), second / (1 - 0.999**self.trained)
            weight -= self.RATE * scaled[0] / (np.sqrt(scaled[1]) + 1e-8)


# ---------------------------------------------------------------------------------------------------------------
# What is measured


POLICIES: dict[str, Callable[[World, int], Policy]] = {
    "learner": lambda world, seed: Tuned(),
    "default": lambda world, seed: gym.default(world.job),
    "best single arm": lambda world, seed: gym.best_single(world),
    "offline table": lambda world, seed: gym.offline_table(world),
    "prior greedy": lambda world, seed: gym.prior_greedy(world.job),
    "UCB1": lambda world, seed: gym.UCB(),
    "recurrent Q": lambda world, seed: RecurrentQ(seed),
}
"""The best single arm is known only afterwards, and the offline table was measured before, at no charge."""


class Outcome:
    """Of one job: the regrets of each policy by seed, those of the learner in A/A, and how the guard did."""

    def __init__(self, made: Made, seeds: Sequence[int], names: Sequence[str]) -> None:
        self.name = made(0).name
        self.regrets: dict[str, list[float]] = {name: [] for name in names}
        self.curves: dict[str, list[Array]] = {name: [] for name in names}
        self.again: list[float] = []
        self.guard = -1e9
        for seed in seeds:
            job = made(seed)
            world = World(job, seed)
            for name in names:
                policy = POLICIES[name](world, seed)
                played = play(world, policy)
                self.regrets[name].append(played.regret)
                self.curves[name].append(played.regrets())
                if isinstance(policy, Tuned):
                    found = gym.guard(world, played, policy.incumbents, policy.settings)
                    self.guard = max(self.guard, found.spent - found.allowed)
            self.again.append(play(World(job, seed, noise=1), Tuned()).regret)

    @property
    def spread(self) -> float:
        """The standard error of the mean of what A/A differs by."""
        apart = [a - b for a, b in zip(self.regrets["learner"], self.again, strict=True)]
        return statistics.stdev(apart) / len(apart) ** 0.5

    def row(self) -> str:
        means = {name: statistics.fmean(values) for name, values in self.regrets.items()}
        ours = means["learner"]
        cells = []
        for name, mean in means.items():
            sure = abs(mean - ours) > 3 * self.spread
            mark = "" if name == "learner" else " =" if not sure else " <" if mean < ours else ""
            cells.append(f"{mean:.1%}{mark}")
        worst = max(self.regrets["learner"])
        over = max(0.0, self.guard + Settings().advance)
        return f"| {self.name} | {' | '.join(cells)} | {worst:.1%} | {self.spread:.2%} | {over:.0f} |"


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.6), layout="constrained")
    for axes, outcome in zip(figure.subplots(1, len(outcomes), squeeze=False)[0], outcomes, strict=True):
        for name, curves in outcome.curves.items():
            mean = np.mean(curves, axis=0)[:: gym.CALLS // 200]
            style = {"color": "black", "linewidth": 2} if name == "learner" else {"linewidth": 1}
            axes.plot(np.arange(len(mean)) * (gym.CALLS // 200), 100 * mean, label=name, **style)
        axes.set_title(outcome.name, fontsize=9)
        axes.set_xlabel("calls")
        axes.grid(alpha=0.3)
        axes.set_ylim(0, 12)
    first = figure.axes[0]
    first.set_ylabel("regret, % of the oracle's time")
    first.legend(fontsize=7)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="how many, 2 or more")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="0 or more")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="these jobs")
    parser.add_argument("--policies", nargs="*", default=list(POLICIES), choices=list(POLICIES), help="and the learner")
    given = parser.parse_args()
    if given.seeds < 2 or given.first < 0:
        parser.error("A/A takes two seeds or more, from 0 on")
    names = [name for name in POLICIES if name == "learner" or name in given.policies]
    seeds = range(given.first, given.first + given.seeds)
    print(f"| job | {' | '.join(names)} | learner's worst seed | A/A | calls' worth over {Settings().explored:.0%} |")
    print("|" + "---|" * (len(names) + 4), flush=True)
    outcomes = []
    begun = time.perf_counter()
    for made in jobs():
        if given.only is None or made(0).name in given.only:
            outcomes.append(Outcome(made, seeds, names))
            print(outcomes[-1].row(), flush=True)
    print(
        f"\nseeds {seeds[0]} to {seeds[-1]}, {gym.CALLS} calls each, {Settings()}; {time.perf_counter() - begun:.0f} s"
    )
    if given.plot is not None:
        wanted = ("NDv4 x 2, simulated", "NDv4 x 2, simulated, winner flips", "NDv4 x 2, simulated, slow link")
        draw([outcome for outcome in outcomes if outcome.name in wanted], given.plot)


if __name__ == "__main__":
    main()
