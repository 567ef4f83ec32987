"""Which program a collective that is called by name runs: a table. Its reasons are in docs/design/policy.md.

What the numbers were chosen by is in ``benchmarks/results/crossover.md``; they are in ``hocket/tunables.py``.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hocket.algorithms import (
    all_pairs,
    chain,
    direct,
    knomial,
    movement_avoiding,
    recursive_halving,
    ring,
    scan,
    two_level,
)
from hocket.errors import UnevenCounts, UnevenSize
from hocket.ir.geometry import check_size, check_units
from hocket.ir.schedule import Schedule
from hocket.program import Contract, Program
from hocket.tunables import ROWS, Tunables, parse_size, show_size
from hocket.verify import CONTRACTS, kept

Found = TypeVar("Found")
Find = Callable[[tuple[object, ...], Callable[[], Schedule]], Found]
"""Finds what a program is, by its key, or makes it by compiling."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a collective that is called by name does.

    ``cuts``: ``x`` is a block for each rank along axis 0; ``joins``: so is the result. ``reads`` and ``writes``: every
    rank has an input, or an output; otherwise the root alone. ``first``: rank 0 has an output, if the others have.
    """

    cuts: bool = False
    joins: bool = False
    combines: bool = False
    reads: bool = True
    writes: bool = True
    first: bool = True

    @property
    def blocks(self) -> bool:
        """Whether the larger buffer of a rank is a block for each rank."""
        return self.cuts or self.joins

    @property
    def exchanges(self) -> bool:
        """Whether every rank has a block for every other: with counts, each knows its own only."""
        return self.cuts and self.joins


KINDS = {
    "all_reduce": Kind(combines=True),
    "all_gather": Kind(joins=True),
    "reduce_scatter": Kind(cuts=True, combines=True),
    "all_to_all": Kind(cuts=True, joins=True),
    "broadcast": Kind(reads=False),
    "reduce": Kind(combines=True, writes=False),
    "gather": Kind(joins=True, writes=False),
    "scatter": Kind(cuts=True, reads=False),
    "scan": Kind(combines=True),
    "exscan": Kind(combines=True, first=False),
}
"""The collectives that are called by name, each a method of Communicator."""

NAMED = tuple(KINDS)

ITEM = 4
"""Bytes of an element where no type is known: those of a float32."""

PICKS = frozenset({"min", "max", "minloc", "maxloc"})
"""Operators that give one of their operands: of two zeros, or of two that are not numbers, which follows from the
order. So they are not combined in another order than others expect."""

_DEFAULTS = Tunables()


@dataclass(frozen=True, slots=True)
class Call:
    """All that a choice depends on, the same on every rank.

    ``size``: bytes of the larger buffer of a rank with most; None if not every rank knows it. ``threads`` of each rank;
    ``sockets`` that the ranks fill, one after the other. ``nodes``: that of each rank, empty where all are on one.
    ``long_headers``: those are connected by an MPI that is fast with more than ``header_bytes`` beside the headers.
    ``oversubscribed``: there are more ranks than cores. ``uneven``: with counts. ``item``: bytes of an element.
    ``tuned``: the numbers to go by.
    """

    name: str
    ranks: int
    size: int | None
    root: int = 0
    reproducible: Contract | None = None
    threads: int = 1
    sockets: int = 1
    nodes: tuple[int, ...] = ()
    oversubscribed: bool = False
    uneven: bool = False
    long_headers: bool = False
    item: int = ITEM
    tuned: Tunables = _DEFAULTS

    @property
    def kind(self) -> Kind:
        return KINDS[self.name]

    @property
    def busiest(self) -> int | None:
        """Bytes that the busiest rank sends or receives where every buffer goes to every rank that needs it."""
        if self.size is None:
            return None
        return -(-self.size * (self.ranks - 1) // (self.ranks if self.kind.blocks else 1))

    @property
    def spread(self) -> bool:
        """Whether the threads of a rank share the call."""
        return self.threads > 1 and not self.uneven and self.size is not None and self.size >= self.tuned.team_bytes


@dataclass(frozen=True, slots=True)
class When:
    """A condition of the table, and how it is said: with the names of tunables in braces."""

    text: str
    holds: Callable[[Call], bool]


def _up_to(call: Call, most: int) -> bool:
    return call.busiest is not None and call.busiest <= most and not call.spread


def _by_nodes(call: Call) -> bool:
    return bool(call.nodes) and call.reproducible in (None, "across-ranks")


def _is_early(call: Call) -> bool:
    return call.size is not None and call.tuned.early_above_bytes < call.size <= call.tuned.early_most_bytes


EXCHANGED_BYTES, MOST_EAGER_BYTES, EAGER_ALIGN = 512 << 10, 128 << 10, 64
"""Of what goes with headers between nodes: bytes of all ranks, and of one, and what those of a chunk are a multiple of
(native/protocol/header.h, native/core/interpreter.h)."""


def _goes_with_headers(call: Call) -> bool:
    """Whether there is room for the messages, and a node sends no more of them at once than it is to, and where they
    are added up, a rank reads no more.

    A message is sent once however many ranks read it. In each round a node sends all that it knows, and then knows what
    twice as many nodes have said: so it sends that of half of them at most, here of those with most ranks.
    """
    if call.size is None or call.ranks > call.tuned.few_ranks:
        return False
    kind, ranks, on_node = call.kind, call.ranks, sorted(Counter(call.nodes).values(), reverse=True)
    chunk = -(-call.size // (ranks if kind.blocks else 1))
    own = -(-chunk // EAGER_ALIGN) * EAGER_ALIGN * (ranks - 1 if kind.cuts else 1)
    if own > min(EXCHANGED_BYTES >> (ranks - 1).bit_length(), MOST_EAGER_BYTES):
        return False
    sent = own * (sum(on_node[: max(1, len(on_node) // 2)]) if kind.reads else 1)
    if kind.combines:
        return max(sent, own * (1 if kind.cuts else ranks - 1)) <= call.tuned.header_bytes
    return sent <= max(call.tuned.header_bytes, call.tuned.long_header_bytes if call.long_headers else 0)


def _is_gathered(call: Call) -> bool:
    short = call.size is not None and call.size < call.tuned.gathered_bytes * call.ranks
    return short and _up_to(call, call.tuned.small_bytes)


_WITH_HEADERS = When(
    "on several nodes, of at most {few_ranks} ranks: messages go with the call's headers, at most {header_bytes} that "
    "a node sends at once, and that a rank adds up; what is only moved, by Open MPI and Intel MPI, up to "
    "{long_header_bytes}",
    lambda call: _by_nodes(call) and not call.uneven and not call.spread and _goes_with_headers(call),
)
_LEADERS = When(
    "on several nodes, small: the busiest rank sends and receives at most {small_bytes}",
    lambda call: _by_nodes(call) and _up_to(call, call.tuned.small_bytes),
)
_FEW_NODES = When(
    "on at most {few_ranks} nodes: every two have connections",
    lambda call: _by_nodes(call) and max(call.nodes) < call.tuned.few_ranks,
)
_LANES = When("on several nodes", lambda call: _by_nodes(call))
_AGGREGATED = When(
    "on several nodes: the busiest rank sends and receives at most {small_bytes}, in blocks shorter than "
    "{gathered_bytes}, or ranks are more than {few_ranks}",
    lambda call: _by_nodes(call) and (_is_gathered(call) or call.ranks > call.tuned.few_ranks),
)
_ONE_SHOT = When(
    "small: the busiest rank sends and receives at most {small_bytes}",
    lambda call: _up_to(call, call.tuned.small_bytes),
)
_ONE_SHOT_AT_ROOT = When(
    "small: the root receives at most {small_at_root_bytes}, on one thread from {team_bytes} on",
    lambda call: _up_to(call, call.tuned.small_at_root_bytes),
)
_BY_SOCKET = When("large, and the ranks fill several sockets", lambda call: call.sockets > 1)
_FEW = When(
    "large, on at most {few_ranks} ranks: every two have a connection", lambda call: call.ranks <= call.tuned.few_ranks
)
_LARGE = When("large: too large for the program for small buffers", lambda _: True)
_ANY = When("all sizes take the same program", lambda _: True)
_ACROSS_SIZES = When('reproducible="across-sizes", at any size', lambda call: call.reproducible == "across-sizes")
_EARLY = When(
    "more than {early_above_bytes}, at most {early_most_bytes}, on 2 ranks with a core each: with short tiles the root"
    " begins early",
    lambda call: call.ranks == 2 and not call.oversubscribed and _is_early(call),
)
_RANK_ORDER = When('reproducible="rank-order", at any size', lambda call: call.reproducible == "rank-order")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table. ``tile``: bytes, of messages in slots; None: from the shape of the schedule and the size."""

    collective: str
    when: When
    program: Callable[[Call], Program]
    tile: Callable[[Call], int] | None = None


def _whole(_: Call) -> int:
    """No chunk is longer: native code then takes one round wherever there is room."""
    return MOST_EAGER_BYTES


def _flat_reduce(call: Call) -> Program:
    return knomial.reduce(call.ranks, max(2, call.ranks), call.root)


def _early_tile(call: Call) -> int:
    short = call.size is not None and call.size <= call.tuned.early_short_bytes
    return call.tuned.early_short_tile_bytes if short else call.tuned.early_tile_bytes


TABLE = (
    Line("all_reduce", _ACROSS_SIZES, lambda c: recursive_halving.all_reduce(c.ranks)),
    Line("all_reduce", _RANK_ORDER, lambda c: all_pairs.one_shot_all_reduce(c.ranks)),
    Line("all_reduce", _WITH_HEADERS, lambda c: all_pairs.one_shot_all_reduce(c.ranks), _whole),
    Line("all_reduce", _LEADERS, lambda c: two_level.leader_all_reduce(c.nodes)),
    Line("all_reduce", _FEW_NODES, lambda c: two_level.all_reduce(c.nodes)),
    Line("all_reduce", _LANES, lambda c: two_level.ring_all_reduce(c.nodes)),
    Line("all_reduce", _ONE_SHOT, lambda c: all_pairs.one_shot_all_reduce(c.ranks)),
    Line("all_reduce", _BY_SOCKET, lambda c: movement_avoiding.all_reduce(c.ranks, c.sockets)),
    Line("all_reduce", _FEW, lambda c: all_pairs.all_reduce(c.ranks)),
    Line("all_reduce", _LARGE, lambda c: ring.all_reduce(c.ranks)),
    Line("all_gather", _WITH_HEADERS, lambda c: direct.all_gather(c.ranks), _whole),
    Line("all_gather", _LANES, lambda c: two_level.all_gather(c.nodes)),
    Line("all_gather", _ONE_SHOT, lambda c: direct.all_gather(c.ranks)),
    Line("all_gather", _FEW, lambda c: direct.all_gather(c.ranks)),
    Line("all_gather", _LARGE, lambda c: ring.all_gather(c.ranks)),
    Line("reduce_scatter", _WITH_HEADERS, lambda c: direct.reduce_scatter(c.ranks), _whole),
    Line("reduce_scatter", _LANES, lambda c: two_level.reduce_scatter(c.nodes)),
    Line("reduce_scatter", _ONE_SHOT, lambda c: direct.reduce_scatter(c.ranks)),
    Line("reduce_scatter", _BY_SOCKET, lambda c: movement_avoiding.reduce_scatter(c.ranks, c.sockets)),
    Line("reduce_scatter", _FEW, lambda c: direct.reduce_scatter(c.ranks)),
    Line("reduce_scatter", _LARGE, lambda c: ring.reduce_scatter(c.ranks)),
    Line("all_to_all", _WITH_HEADERS, lambda c: direct.all_to_all(c.ranks), _whole),
    Line("all_to_all", _AGGREGATED, lambda c: two_level.all_to_all(c.nodes)),
    Line("all_to_all", _ANY, lambda c: direct.all_to_all(c.ranks)),
    Line("broadcast", _WITH_HEADERS, lambda c: knomial.broadcast(c.ranks, max(2, c.ranks), c.root), _whole),
    Line("broadcast", _LEADERS, lambda c: two_level.leader_broadcast(c.nodes, c.root)),
    Line("broadcast", _LANES, lambda c: two_level.broadcast(c.nodes, c.root)),
    Line("broadcast", _ANY, lambda c: knomial.broadcast(c.ranks, max(2, c.ranks), c.root)),
    Line("reduce", _WITH_HEADERS, _flat_reduce, _whole),
    Line("reduce", _LEADERS, lambda c: two_level.leader_reduce(c.nodes, c.root)),
    Line("reduce", _LANES, lambda c: two_level.reduce(c.nodes, c.root)),
    Line("reduce", _EARLY, _flat_reduce, _early_tile),
    Line("reduce", _ONE_SHOT_AT_ROOT, _flat_reduce),
    Line("reduce", _BY_SOCKET, lambda c: movement_avoiding.reduce(c.ranks, c.sockets, c.root)),
    Line("reduce", _LARGE, lambda c: chain.reduce(c.ranks, c.root)),
    Line("gather", _ANY, lambda c: direct.gather(c.ranks, c.root)),
    Line("scatter", _ANY, lambda c: direct.scatter(c.ranks, c.root)),
    Line("scan", _ONE_SHOT, lambda c: scan.one_shot_scan(c.ranks)),
    Line("scan", _LARGE, lambda c: scan.scan(c.ranks)),
    Line("exscan", _ONE_SHOT, lambda c: scan.one_shot_exscan(c.ranks)),
    Line("exscan", _LARGE, lambda c: scan.exscan(c.ranks)),
)
"""The first line of a collective whose condition holds counts."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """A range of what ``Call.size`` is, in bytes, both ends included; without ``most`` there is no upper one."""

    least: int = 0
    most: int | None = None

    @staticmethod
    def parse(text: str) -> Sizes | None:
        """Of ``32KB..3MB``, ``1MB..``, ``..4KB`` or ``64KB``, one size alone. None for what is no range."""
        first, dots, last = (part.strip() for part in text.partition(".."))
        least = parse_size(first) if first else 0
        most = parse_size(last) if last else None
        if least is None or not (first or last) or (last and most is None):
            return None
        most = most if dots else least
        return None if most is not None and most < least else Sizes(least, most)

    def __contains__(self, size: int | None) -> bool:
        """A size that not every rank knows is in the range of all alone."""
        if size is None:
            return self == Sizes()
        return self.least <= size and (self.most is None or size <= self.most)

    def __str__(self) -> str:
        if self.most is None:
            return f"{show_size(self.least)} or more" if self.least else "all sizes"
        return f"{show_size(self.least)} to {show_size(self.most)}"


@dataclass(frozen=True, slots=True)
class Entry:
    """A schedule that the user has for calls of its collective, of some sizes. ``said``: where the user says so.
    ``tile`` in bytes; None: from the size."""

    schedule: Schedule
    sizes: Sizes
    said: str
    tile: int | None = None

    def takes(self, call: Call) -> bool:
        """Whether it is for a call, and can do it: from its root, and cut as it is, with the bits that it asks for."""
        collective = self.schedule.collective
        root = getattr(collective, "root", 0)
        if (collective.name, root, collective.size) != (call.name.replace("_", ""), call.root, call.ranks):
            return False
        return call.size in self.sizes and self._cuts(call) and self._keeps(call.reproducible)

    def _cuts(self, call: Call) -> bool:
        c = self.schedule.collective
        try:
            if call.uneven:
                check_units(self.schedule)
            elif call.size is not None:
                n = call.size // (call.item * c.most_blocks())
                check_size(self.schedule.name, c.chunks, self.schedule.narrowings, n, call.item)
        except (UnevenSize, UnevenCounts):
            return False
        return True

    def _keeps(self, contract: Contract | None) -> bool:
        found = None if contract is None else kept(self.schedule)
        return contract is None or found is None or CONTRACTS.index(found) >= CONTRACTS.index(contract)


@dataclass(frozen=True, slots=True)
class Choice:
    """What a call runs: an entry of the user's; without one, ``instances`` of the program of a line."""

    call: Call
    line: Line
    entry: Entry | None = None

    @property
    def why(self) -> str:
        """The condition that holds."""
        if self.entry is not None:
            return f"{self.entry.said}, for {self.entry.sizes}"
        tuned = self.call.tuned
        return self.line.when.text.format_map({row.name: row.show(getattr(tuned, row.name)) for row in ROWS})

    @property
    def tile(self) -> int | None:
        if self.entry is not None:
            return self.entry.tile
        return None if self.line.tile is None else self.line.tile(self.call)

    @property
    def instances(self) -> int:
        return self.call.threads if self.call.spread else 1

    @property
    def key(self) -> tuple[object, ...]:
        """What is compiled, in plain values, which mean the same on every rank."""
        call = self.call
        if self.entry is not None:
            return call.name, self.entry.schedule.digest(), call.uneven
        place = call.sockets, call.nodes
        return call.name, self.line.when.text, call.root, call.reproducible, place, self.instances, call.uneven

    def program(self) -> Program:
        return self.line.program(self.call)

    def zero_copy(self, find: Find[Found], inplace: bool) -> Found | None:
        """What replaces the program of a line where ranks can access each other's arrays; None where nothing does."""
        call, instances = self.call, self.instances
        if not has_zero_copy(call.name, call.reproducible, inplace=inplace):
            return None

        def compiled() -> Schedule:
            program = _ZERO_COPY[call.name](call.ranks, call.root, inplace)
            return program.compile(instances=instances, reproducible=call.reproducible, storage="peer")

        return find((call.name, call.root, call.reproducible, instances, inplace), compiled)

    def compile(self) -> Schedule:
        """Raises UnevenCounts where the call has counts, and this cannot run with them."""
        if self.entry is not None:
            return self.entry.schedule
        schedule = self.program().compile(instances=self.instances, reproducible=self.call.reproducible)
        if self.call.uneven:
            check_units(schedule)
        return schedule


def choose(call: Call, entries: Sequence[Entry] = ()) -> Choice:
    """What a call of a collective in NAMED takes: the first entry of the user's that does, else what the table says."""
    line = next(line for line in TABLE if line.collective == call.name and line.when.holds(call))
    return Choice(call, line, next((entry for entry in entries if entry.takes(call)), None))


def digest(entries: Sequence[Entry]) -> str:
    """The same on ranks whose entries take the same; empty where there are none."""
    said = [(entry.schedule.digest(), str(entry.sizes), entry.tile) for entry in entries]
    return hashlib.sha256(repr(said).encode()).hexdigest() if said else ""


_ZERO_COPY: dict[str, Callable[[int, int, bool], Program]] = {
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


_ZERO_COPY_IN_ONE_ROUND = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce"})
"""Collectives that lend shared arrays, if they are not short, also where they would take one round."""


def has_zero_copy(name: str, reproducible: Contract | None, *, inplace: bool) -> bool:
    """Whether there is a program for arrays that all ranks can access."""
    return name in _ZERO_COPY and reproducible != "across-sizes" and not (name == "all_to_all" and inplace)


def declined(choice: Choice, one_round: bool, attached: bool) -> str | None:
    """Why a rank offers no zero-copy program in a call, where its arrays can be accessed by others; None: it does.

    ``one_round``: the call would else take one round. That is faster for short messages, and where ranks share cores:
    they wait for each other once, not twice. ``attached``: arrays are private, so others access them by cross-memory
    attach, each time a call of the system; that is for long calls only, in one round or not.
    """
    call = choice.call
    if choice.entry is not None:
        return "a schedule of one's own takes slots"
    if call.size is None or call.ranks == 1 or call.uneven or call.name not in _ZERO_COPY:
        return "it has no program for arrays in place of slots"
    if call.nodes:
        return "ranks on several nodes, which share no memory"
    if attached and call.reproducible == "across-sizes":
        return "sums that do not depend on the size"
    if attached and call.ranks > 2 and call.kind.combines:
        return "sums on more than 2 ranks: the path must not change their order"
    if attached:
        least = call.tuned.cma_crowded_bytes if call.oversubscribed else call.tuned.cma_bytes
        return None if call.size >= least else f"less than {show_size(least)}"
    if not one_round:
        return None
    if call.oversubscribed or call.name not in _ZERO_COPY_IN_ONE_ROUND:
        return "it takes one round"
    sent = call.size
    if call.kind.blocks or call.name == "all_reduce":  # of which others read what they read of a ReduceScatter
        block = -(-call.size // call.ranks)
        sent = block if call.name == "all_gather" else sent - block  # the same block to all is stored once
    least = call.tuned.lent_bytes
    return None if sent >= least else f"a rank sends less than {show_size(least)}"


def is_small(name: str, ranks: int, size: int) -> bool:
    """Whether a call takes the program for small buffers. ``size``: bytes of the larger buffer of a rank with most."""
    small = choose(Call(name, ranks, 0)).line.program
    return choose(Call(name, ranks, size)).line.program is small


def default_program(name: str, ranks: int, root: int = 0, *, small: bool = False) -> Program:
    """The program of a collective for small buffers, or for the largest."""
    return choose(Call(name, ranks, 0 if small else None, root)).program()


def zero_copy_program(
    name: str, ranks: int, root: int = 0, reproducible: Contract | None = None, *, inplace: bool
) -> Program | None:
    """What a communicator runs instead where ranks can access each other's arrays. None: nothing.

    An AllReduce adds up in the order of ranks.
    """
    return _ZERO_COPY[name](ranks, root, inplace) if has_zero_copy(name, reproducible, inplace=inplace) else None
