"""What a tuner chooses among: the keys that it keeps apart, and the arms of each, ways to make a call.

An arm leaves the bits of a result as the static policy has them, so that ranks may change arms in the middle of a job.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hocket import _native, topology
from hocket.algorithms.catalogue import CATALOGUE
from hocket.algorithms.entry import Algorithm
from hocket.errors import BadTopology, HocketError
from hocket.functions import find, traced
from hocket.ir.schedule import Schedule
from hocket.program import Contract
from hocket.runtime.tuned import tuned as tuned_numbers
from hocket.sim import Simulator
from hocket.topology import Topology
from hocket.tunables import show_size
from hocket.tuning import ITEM, KINDS, PICKS, Call, choose, declined, has_zero_copy, zero_copy_program
from hocket.verify import kept

MOST = 16
"""Arms of a key: the places of its table in native code (policy/arms.h)."""

TILES = (16 << 10, 64 << 10, 256 << 10)
"""Bytes, beside that which follows from the size: the range within which tiles were found to matter
(benchmarks/results/crossover.md)."""

COMPILED = 8
"""Ranks for which other programs are tried: to compile all of the library for an AllGather takes 0.2 s on 8 ranks, and
1.9 s on 32, and all ranks wait for it."""

_EXACT = frozenset(name for name, operators in _native.OPERATORS_OF.items() if "band" in operators)
"""Types whose sums have the same bits in any order: integers and truth values."""

_LEAST = dict.fromkeys(("broadcast", "gather", "scatter"), "attached_one_way_bytes")
_LEAST["all_to_all"] = "attached_exchange_bytes"
"""The tunable that says from which size on calls attach; of others ``attached_bytes``."""


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Calls among which a tuner makes no difference. All of it is the same on every rank.

    ``bits``: the larger buffer of a rank has from 2**bits bytes to twice as many, without that end. ``nodes``: that of
    each rank, empty where all are on one. ``type`` of elements; ``op`` is empty where nothing is combined.
    """

    collective: str
    ranks: int
    nodes: tuple[int, ...]
    type: str
    op: str
    root: int
    bits: int
    reproducible: Contract | None
    oversubscribed: bool

    @classmethod
    def of(cls, call: Call, kind: str, op: str) -> Key | None:
        """That of a call on elements of type ``kind``; None for one that is not tuned: not every rank knows its size,
        it has no bytes or counts, or threads share it."""
        if not call.size or call.uneven or call.spread or call.ranks == 1:
            return None
        combined = op if KINDS[call.name].combines else ""
        place = call.ranks, call.nodes, kind, combined, call.root
        return cls(call.name, *place, call.size.bit_length() - 1, call.reproducible, call.oversubscribed)

    @property
    def least(self) -> int:
        """The fewest bytes of the larger buffer."""
        return 1 << self.bits

    def call(self) -> Call:
        """The shortest of its calls, by the tuned numbers of this process."""
        place = self.collective, self.ranks, self.least, self.root, self.reproducible
        item, tuned = _native.TYPE_BYTES.get(self.type, ITEM), tuned_numbers().policy
        return Call(*place, nodes=self.nodes, oversubscribed=self.oversubscribed, item=item, tuned=tuned)

    def __str__(self) -> str:
        words = [self.collective, show_size(self.least), f"{self.ranks} ranks", self.type]
        words += [self.op] * bool(self.op) + [f"root {self.root}"] * bool(self.root)
        words += [f"{len(set(self.nodes))} nodes"] * bool(self.nodes) + [self.reproducible or ""]
        return " ".join(filter(None, [*words, "oversubscribed" * self.oversubscribed]))


@dataclass(frozen=True, slots=True, order=True)
class Arm:
    """A way to make the calls of a key.

    ``program``: ``hocket.algorithms.ring:all_reduce``, with ``parameters``; empty for that of the static policy.
    ``tile`` in bytes; None: that of the static policy. ``zero_copy``: whether ranks offer zero copies where the static
    policy has them do so.
    """

    program: str = ""
    parameters: tuple[tuple[str, int], ...] = ()
    tile: int | None = None
    zero_copy: bool = True

    def schedule(self, call: Call) -> Schedule | None:
        """The program, compiled and proven; None for that of the static policy."""
        if not self.program:
            return None
        kind = KINDS[call.name]
        return _compiled(self, None if kind.reads and kind.writes else call.root, call.reproducible)

    def __str__(self) -> str:
        words = [self.program.rpartition(".")[2] or "default", *(f"{name}={value}" for name, value in self.parameters)]
        words += [] if self.tile is None else [f"tile={show_size(self.tile)}"]
        return " ".join([*words, "slots"] if not self.zero_copy else words)


DEFAULT = Arm()
"""What the static policy does."""


@functools.cache
def _compiled(arm: Arm, root: int | None, reproducible: Contract | None) -> Schedule:
    found = find(arm.program)
    assert callable(found)
    values = dict(arm.parameters) | ({} if root is None else {"root": root})
    return traced(arm.program, found, values).compile(reproducible=reproducible)


def candidates(key: Key, call: Call) -> list[Arm]:
    """The arms of the calls of a key, of which ``call`` is one, that of the static policy first.

    Programs that come to the same steps count once.
    """
    choice = choose(call)
    default = choice.compile()
    found, free = [DEFAULT], _any_order(key)
    if free and has_zero_copy(call.name, call.reproducible, inplace=False) and key.least >= call.tuned.lent_bytes:
        found.append(Arm(zero_copy=False))
    found += [Arm(tile=tile, zero_copy=not free) for tile in TILES if choice.tile != tile and key.least >= 2 * tile]
    seen = {steps(default)}
    for arm in _programs(key):
        try:
            schedule = arm.schedule(call)
        except HocketError:  # not with such bits, or not on so many ranks
            continue
        assert schedule is not None
        if steps(schedule) not in seen and _same_bits(key, default, schedule):
            seen.add(steps(schedule))
            found.append(arm)
    return found[:MOST]


def steps(schedule: Schedule) -> str:
    """A hash of what a schedule does, whatever it is called."""
    return replace(schedule, name="").digest()


def predicted(arm: Arm, call: Call, op: str, machine: Topology | None) -> float:
    """The seconds of a call by an arm, simulated on the topology ``local``; NaN without one that has so many cores."""
    if machine is None or call.ranks > machine.gpus or call.size is None:
        return math.nan
    own = arm.schedule(call)
    if own is None and arm.zero_copy and attaches(call, op):
        lent = zero_copy_program(call.name, call.ranks, call.root, call.reproducible, inplace=False)
        if lent is not None:
            return Simulator(lent.compile(storage="peer"), machine).best(call.size).time * 1e-6
    return Simulator(choose(call).compile() if own is None else own, machine).best(call.size, arm.tile).time * 1e-6


def attaches(call: Call, op: str) -> bool:
    """Whether the static policy attaches to private arrays in a cache and in huge pages, where ranks may."""
    if call.size is None or op in PICKS or declined(choose(call), one_round=False, attached=True) is not None:
        return False
    least = tuned_numbers().native[_LEAST.get(call.name, "attached_bytes")]
    shortest = call.size // call.ranks if call.name in ("gather", "scatter") else call.size
    return shortest >= least  # each rank goes by its own larger buffer


def calibrated() -> Topology | None:
    """What ``hocket calibrate`` has measured of this machine; None where it has not."""
    try:
        return topology.local()
    except BadTopology:
        return None


def _programs(key: Key) -> Iterator[Arm]:
    """All of the library for the collective on these ranks, but for what is for nodes and sockets."""
    if key.ranks > COMPILED:
        return
    for algorithm in CATALOGUE:
        if algorithm.collective.__name__.lower() != key.collective.replace("_", ""):
            continue
        for parameters in algorithm.cases(key.ranks):
            numbers = tuple((name, value) for name, value in parameters.items() if isinstance(value, int))
            if len(numbers) == len(parameters) and not parameters.keys() & {"nodes", "sockets"}:
                yield Arm(_target(algorithm), numbers, zero_copy=False)


def _target(algorithm: Algorithm) -> str:
    return f"{algorithm.factory.__module__}:{algorithm.factory.__name__}"


def _any_order(key: Key) -> bool:
    """Whether results have the same bits in whatever order operands are combined."""
    return not key.op or key.type in _EXACT or (key.ranks == 2 and key.op not in PICKS)


def _same_bits(key: Key, default: Schedule, other: Schedule) -> bool:
    """Whether two schedules give the same bits: the order does not count, or is that of ranks in both."""
    return _any_order(key) or kept(default) == kept(other) == "rank-order"
