"""Which program a collective that is called by name runs: a table.

Small buffers take a program that sends all there is to send at once: up to 16 KB a rank, such a call costs one look at
what the others have said (ARCHITECTURE.md, "One round"). It pays with traffic: every buffer goes to every rank that
needs it. So small is what does not make the busiest rank send or receive more than a limit.

Others take a program that moves least (docs/traffic.md) in the fewest steps, which two-shot and direct ones do. They
have a connection for every two ranks, so from 17 ranks on the rings are taken, which need less memory for slots; a root
would add up large buffers of all others alone. Where ranks fill several sockets, sums stay within them first.

Measured with ``benchmarks/crossover.py``, float32, on two cores that other work kept busy, so roughly: times of a call
in units of those of another program, on 4 and 8 ranks; on 2 all do the same. The rows up to 256 KB, ReduceScatter and
AllGather are from before multicast slots became larger, which only they can have gained from.

| bytes | AllReduce, two-shot / one-shot | ring / two-shot | ReduceScatter, ring / direct | AllGather, ring / direct |
|---|---|---|---|---|
| 16 KB | 1.52, 1.42 | 0.95, 1.63 | 1.40, 1.73 | 2.34, 1.50 |
| 256 KB | 0.81, 0.61 | 1.05, 1.11 | 1.10, 1.50 | 1.23, 1.50 |
| 1 MB | 0.98, 0.56 | 1.39, 1.57 | 1.09, 1.01 | 1.20, 1.49 |
| 4 MB | 0.56, 0.40 | 1.48, 1.30 | 0.78, 1.08 | 1.77, 1.18 |
| 16 MB | 0.62, 0.39 | 1.06, 1.10 | 1.07, 1.05 | 0.99, 1.06 |

| bytes | Broadcast, tree / flat | chain / flat | Reduce, tree / flat | chain / flat |
|---|---|---|---|---|
| 256 KB | 1.42, 1.54 | 1.77, 1.95 | 0.96, 1.87 | 1.14, 2.01 |
| 1 MB | 0.82, 1.21 | 1.24, 1.50 | 1.27, 1.18 | 1.29, 1.25 |
| 4 MB | 1.19, 1.44 | 1.14, 1.56 | 0.99, 1.01 | 0.99, 0.96 |
| 16 MB | 0.98, 1.08 | 1.00, 1.24 | 0.91, 0.76 | 0.90, 0.60 |

A root that has a core of its own stores a Broadcast faster than the others load it, and so is ahead of them by all
slots of a connection: with tiles that are short, these stay in a second-level cache. On 2 ranks with a core each, flat
with tiles of 32 KB / as the shape of the schedule has it, in three runs:

| bytes | Broadcast |
|---|---|
| 512 KB | 0.91, 0.90, 1.01 |
| 1 MB | 0.86, 0.88, 1.02 |
| 4 MB | 1.06, 1.10, 1.07 |
| 8 MB | 0.78, 0.76, 0.96 |
| 16 MB | 0.80, 0.84, 0.71 |
| 32 MB | 1.02, 1.10, 1.00 |

That 4 MB pay is the price of one range. More than two ranks with a core each have not been measured; where ranks share
cores, short tiles take up to 1.6 times as long.

The root of a Reduce can add up what has come while the rest is sent. On 2 ranks with a core each, on a Granite Rapids,
with tiles of 16 KB, or 32 KB from 256 KB on / as the shape has it, in three runs. Calls one after the other hide part
of what is gained: by ``benchmarks/peers.py``, which has a barrier before each, on buffers that no cache holds, 32 KB
took 8.4 us instead of 9.6, and 128 KB 21.2 instead of 23.6.

| bytes | Reduce |
|---|---|
| 32 KB | 0.99, 0.99, 0.98 |
| 64 KB | 1.01, 1.01, 1.00 |
| 128 KB | 0.93, 0.93, 0.93 |
| 256 KB | 0.95, 0.97, 0.96 |
| 512 KB | 0.89, 0.94, 0.91 |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hocket.algorithms import all_pairs, chain, direct, knomial, movement_avoiding, recursive_halving, ring, scan
from hocket.ir.schedule import Schedule
from hocket.program import Contract, Program

_BLOCKWISE = frozenset({"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"})
"""Collectives in which the larger buffer of a rank is a block for each rank."""

_COMBINING = frozenset({"all_reduce", "reduce_scatter", "reduce"})

_SPREAD_BYTES = 1 << 20
"""Size from which on a collective has an instance for each thread (Settings.team_bytes of
native/runtime/communicator.h: less is not worth waking them)."""


@dataclass(frozen=True, slots=True)
class Call:
    """All that a choice depends on, the same on every rank.

    ``size``: bytes of the larger buffer of a rank with most; None if not every rank knows it. ``threads`` of each rank;
    ``sockets`` that the ranks fill, one after the other. ``crowded``: there are more ranks than cores. ``uneven``: with
    counts.
    """

    name: str
    ranks: int
    size: int | None
    root: int = 0
    reproducible: Contract | None = None
    threads: int = 1
    sockets: int = 1
    crowded: bool = False
    uneven: bool = False

    @property
    def busiest(self) -> int | None:
        """Bytes that the busiest rank sends or receives where every buffer goes to every rank that needs it."""
        if self.size is None:
            return None
        return -(-self.size * (self.ranks - 1) // (self.ranks if self.name in _BLOCKWISE else 1))

    @property
    def spread(self) -> bool:
        """Whether the threads of a rank share the call."""
        return self.threads > 1 and not self.uneven and self.size is not None and self.size >= _SPREAD_BYTES


@dataclass(frozen=True, slots=True)
class When:
    """A condition of the table, and how it is said."""

    text: str
    holds: Callable[[Call], bool]


def _up_to(most: int) -> Callable[[Call], bool]:
    return lambda call: call.busiest is not None and call.busiest <= most and not call.spread


def _uncrowded(more: int, most: int, ranks: int | None = None) -> Callable[[Call], bool]:
    """Ranks with a core each, as many as ``ranks``, and a size in a range."""
    return lambda call: (
        not call.crowded and ranks in (None, call.ranks) and call.size is not None and more < call.size <= most
    )


_SMALL = When("small: the busiest rank sends and receives at most 128 KB", _up_to(128 << 10))
_SMALL_AT_ROOT = When("small: the root receives at most 16 MB, on one thread from 1 MB on", _up_to(16 << 20))
_BY_SOCKET = When("large, and the ranks fill several sockets", lambda call: call.sockets > 1)
_FEW = When("large, on at most 16 ranks: every two have a connection", lambda call: call.ranks <= 16)
_LARGE = When("large: more than what is small", lambda _: True)
_ANY = When("all sizes take the same program", lambda _: True)
_ACROSS_SIZES = When('reproducible="across-sizes", at any size', lambda call: call.reproducible == "across-sizes")
_STREAM = When(
    "more than 256 KB, at most 16 MB, on ranks with a core each: short tiles keep slots in a core's cache",
    _uncrowded(256 << 10, 16 << 20),
)
_EARLY_16K = When(
    "more than 16 KB, at most 128 KB, on 2 ranks with a core each: with short tiles the root begins early",
    _uncrowded(16 << 10, 128 << 10, ranks=2),
)
_EARLY_32K = When(
    "more than 128 KB, at most 512 KB, on 2 ranks with a core each: with short tiles the root begins early",
    _uncrowded(128 << 10, 512 << 10, ranks=2),
)
_RANK_ORDER = When('reproducible="rank-order", at any size', lambda call: call.reproducible == "rank-order")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table. ``program`` is of the number of ranks, the root, and the number of sockets; ``tile`` in
    bytes, of messages in slots, None: from the shape of the schedule and the size."""

    collective: str
    when: When
    program: Callable[[int, int, int], Program]
    tile: int | None = None


def _flat_broadcast(ranks: int, root: int, _: int) -> Program:
    return knomial.broadcast(ranks, max(2, ranks), root)


def _flat_reduce(ranks: int, root: int, _: int) -> Program:
    return knomial.reduce(ranks, max(2, ranks), root)


TABLE = (
    Line("all_reduce", _ACROSS_SIZES, lambda p, *_: recursive_halving.all_reduce(p)),
    Line("all_reduce", _RANK_ORDER, lambda p, *_: all_pairs.one_shot_all_reduce(p)),
    Line("all_reduce", _SMALL, lambda p, *_: all_pairs.one_shot_all_reduce(p)),
    Line("all_reduce", _BY_SOCKET, lambda p, _, sockets: movement_avoiding.all_reduce(p, sockets)),
    Line("all_reduce", _FEW, lambda p, *_: all_pairs.all_reduce(p)),
    Line("all_reduce", _LARGE, lambda p, *_: ring.all_reduce(p)),
    Line("all_gather", _SMALL, lambda p, *_: direct.all_gather(p)),
    Line("all_gather", _FEW, lambda p, *_: direct.all_gather(p)),
    Line("all_gather", _LARGE, lambda p, *_: ring.all_gather(p)),
    Line("reduce_scatter", _SMALL, lambda p, *_: direct.reduce_scatter(p)),
    Line("reduce_scatter", _BY_SOCKET, lambda p, _, sockets: movement_avoiding.reduce_scatter(p, sockets)),
    Line("reduce_scatter", _FEW, lambda p, *_: direct.reduce_scatter(p)),
    Line("reduce_scatter", _LARGE, lambda p, *_: ring.reduce_scatter(p)),
    Line("all_to_all", _ANY, lambda p, *_: direct.all_to_all(p)),
    Line("broadcast", _STREAM, _flat_broadcast, tile=32 << 10),
    Line("broadcast", _ANY, _flat_broadcast),
    Line("reduce", _EARLY_16K, _flat_reduce, tile=16 << 10),
    Line("reduce", _EARLY_32K, _flat_reduce, tile=32 << 10),
    Line("reduce", _SMALL_AT_ROOT, _flat_reduce),
    Line("reduce", _BY_SOCKET, lambda p, root, sockets: movement_avoiding.reduce(p, sockets, root)),
    Line("reduce", _LARGE, lambda p, root, _: chain.reduce(p, root)),
    Line("gather", _ANY, lambda p, root, _: direct.gather(p, root)),
    Line("scatter", _ANY, lambda p, root, _: direct.scatter(p, root)),
    Line("scan", _SMALL, lambda p, *_: scan.one_shot_scan(p)),
    Line("scan", _LARGE, lambda p, *_: scan.scan(p)),
    Line("exscan", _SMALL, lambda p, *_: scan.one_shot_exscan(p)),
    Line("exscan", _LARGE, lambda p, *_: scan.exscan(p)),
)
"""The first line of a collective whose condition holds counts."""

NAMED = tuple(dict.fromkeys(line.collective for line in TABLE))
"""The collectives that are called by name, each a method of Communicator."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a call runs: ``instances`` of the program of a line."""

    line: Line
    root: int
    reproducible: Contract | None
    sockets: int
    instances: int

    @property
    def key(self) -> tuple[object, ...]:
        """What is compiled, in plain values, which mean the same on every rank."""
        line = self.line
        return line.collective, line.when.text, self.root, self.reproducible, self.sockets, self.instances

    def program(self, ranks: int) -> Program:
        return self.line.program(ranks, self.root, self.sockets)

    def compile(self, ranks: int) -> Schedule:
        return self.program(ranks).compile(instances=self.instances, reproducible=self.reproducible)


def choose(call: Call) -> Choice:
    """What the table says of a call of a collective in NAMED."""
    line = next(line for line in TABLE if line.collective == call.name and line.when.holds(call))
    return Choice(line, call.root, call.reproducible, call.sockets, call.threads if call.spread else 1)


_LENDING: dict[str, Callable[[int, int, bool], Program]] = {
    "all_reduce": lambda p, _, inplace: direct.all_reduce(p, inplace=inplace),
    "all_gather": lambda p, _, inplace: direct.all_gather(p, inplace=inplace),
    "reduce_scatter": lambda p, _, inplace: direct.reduce_scatter(p, inplace=inplace),
    "all_to_all": lambda p, *_: direct.all_to_all(p),
    "broadcast": lambda p, root, inplace: direct.broadcast(p, root, inplace=inplace),
    "reduce": lambda p, root, inplace: direct.reduce(p, root, inplace=inplace),
    "gather": lambda p, root, inplace: direct.gather(p, root, inplace=inplace),
    "scatter": lambda p, root, inplace: direct.scatter(p, root, inplace=inplace),
}
"""Where ranks reach each other's arrays, by whether they are in place: what moves least is direct. A prefix sum is not
here: it takes slots."""


_FETCHING: dict[str, Callable[[int, int, bool], Program]] = _LENDING | {
    "all_reduce": lambda p, _, inplace: all_pairs.one_shot_all_reduce(p, inplace=inplace),
    "all_gather": lambda p, _, inplace: direct.all_gather(p, inplace=inplace, pulled=True),
    "reduce": lambda p, root, inplace: direct.reduce(p, root, inplace=inplace, whole=True),
}
"""The same, but every rank fetches all that it wants, and makes the whole of a sum: nobody then stores to what lies in
a cache of another rank."""

_FETCHED_BELOW = {"all_reduce": 16 << 10, "all_gather": 64 << 10}
"""Bytes below which ranks fetch from shared arrays. Above, other ways move less: a gather reads a block once, and
stores it in its place on every rank. Measured on two cores of a Granite Rapids, as are the next."""

_FETCHED_REACHED_BELOW = {"all_reduce": 64 << 10, "all_gather": 256 << 10, "reduce": 96 << 10}
"""The same of private arrays, where each access is a call of the system: whoever fetches makes one, not three."""

_LENT_FROM = dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce"), 4 << 10)
"""Bytes that a rank sends, from which on it pays not to send them even in one round. Measured on two ranks."""

_REACHED_FROM = 16 << 10
"""Bytes that a rank sends, from which on calls find out whether it pays to reach private arrays of others."""

_REACHED_CROWDED_FROM = {"all_to_all": 64 << 10}
"""The same where ranks share cores. On 4 and 8 ranks on two cores, an AllToAll of 256 KB and 2 MB then took 0.6 to 0.8
of the time (``benchmarks/reaching.py``). With this table widened, AllGather and Broadcast gained nothing on 4 ranks,
and on 8 took up to twice as long; Gather and Scatter were not measured."""


def can_lend(name: str, reproducible: Contract | None = None, *, inplace: bool) -> bool:
    """Whether there is a program for arrays that all ranks can access."""
    return name in _LENDING and reproducible != "across-sizes" and not (name == "all_to_all" and inplace)


def lends(call: Call, one_round: bool, reached: bool) -> bool:
    """Whether a call takes a lending program where it can.

    ``one_round``: it would else take one round. That is faster for short messages, and where ranks share cores: they
    wait for each other once, not twice. ``reached``: arrays are private, so that every access is a call of the system.
    """
    if call.size is None or call.ranks == 1 or call.uneven or call.name not in _LENDING:
        return False
    if not one_round and not reached:
        return True
    sent = call.size
    if call.name in _BLOCKWISE:
        block = -(-call.size // call.ranks)
        gathered = call.name == "all_gather" and not reached  # the same block to all: in one round it is stored once
        sent = block if gathered else sent - block
    if reached and call.ranks > 2 and call.name in _COMBINING:
        return False  # which way a call goes must not change in which order it adds up
    if call.crowded:
        least = _REACHED_CROWDED_FROM.get(call.name) if reached else None
    else:
        least = _REACHED_FROM if reached else _LENT_FROM.get(call.name)
    return least is not None and sent >= least


def fetches(call: Call, inplace: bool, reached: bool) -> bool:
    """Whether, where ranks can access each other's arrays, every rank fetches all that it wants.

    ``reached``: see ``lends``. On more than two ranks that moves much more. A sum in place would be stored over what
    the other rank still reads.
    """
    if call.ranks > 2 or (call.name == "all_reduce" and inplace):
        return False
    below = _FETCHED_REACHED_BELOW if reached else _FETCHED_BELOW
    return call.size is not None and call.size < below.get(call.name, 0)


def is_small(name: str, ranks: int, size: int) -> bool:
    """Whether a call takes the program for small buffers. ``size``: bytes of the larger buffer of a rank with most."""
    small = choose(Call(name, ranks, 0)).line.program
    return choose(Call(name, ranks, size)).line.program is small


def default_program(
    name: str,
    ranks: int,
    root: int = 0,
    reproducible: Contract | None = None,
    *,
    small: bool = False,
    sockets: int = 1,
) -> Program:
    """The program of a collective for small buffers, or for the largest.

    ``sockets``: those that the ranks fill, one after the other.
    """
    return choose(Call(name, ranks, 0 if small else None, root, reproducible, sockets=sockets)).program(ranks)


def lending_program(
    name: str,
    ranks: int,
    root: int = 0,
    reproducible: Contract | None = None,
    *,
    inplace: bool,
    fetching: bool = False,
) -> Program | None:
    """What a communicator runs instead where ranks can access each other's arrays. None: nothing.

    An AllReduce adds up in the order of ranks. ``fetching``: see ``fetches``.
    """
    if not can_lend(name, reproducible, inplace=inplace):
        return None
    return (_FETCHING if fetching else _LENDING)[name](ranks, root, inplace)
