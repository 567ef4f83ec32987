"""Plans of collectives that are called by name, in files for programs without Python (native/mpi/plan_file.h).

A file is for one number of ranks, or for ranks on such nodes, with the plans of all: what ``hocket.tuning`` chooses, by
size, for ranks with one thread each on one socket, compiled and proven. It is a sequence of numbers of 64 bits, seven
bits a byte, the low ones first (LEB128): most fit one byte.

Building the package makes those of few ranks (CMakeLists.txt), and ``hocket mpi --prepare`` those of more.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, groupby, product
from pathlib import Path

import numpy as np

from hocket import _native
from hocket._native import Source
from hocket.errors import InvalidArgument, SumsDiffer, UnevenCounts, caller
from hocket.ir.chunk_dag import Span
from hocket.ir.schedule import Schedule
from hocket.program import Contract
from hocket.runtime.buffers import Bound
from hocket.runtime.operands import Operand, Operands, element_type
from hocket.runtime.plan import lower_all
from hocket.tunables import Tunables
from hocket.tuning import KINDS, Call, choose, declined

FORMAT = 0x686B6D05  # changes whenever the layout of a file, or its meaning, does

_COLLECTIVES = "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all"
_CONTRACTS: tuple[Contract | None, ...] = None, "rank-order"
_SOURCES = Source.NOTHING, Source.X, Source.OUT, Source.SCRATCH
_IN_PLACE = False, True  # the two ways in which a call's buffers lie
_BYTES = element_type("uint8")
_LARGEST = 1 << 40
_NOTHING = -1
_LONGEST_NAME = 100  # kLongestName in native/mpi/plan_file.h: file systems take 255 bytes, a row of the report 160

Taken = tuple[int, int, int, int]
"""What a call runs: a plan, its tile or 0, and the plans in place of it where ranks access each other's buffers, which
lie in place or apart. Plans by number, _NOTHING for none."""


def write(directory: Path, ranks: int, nodes: Sequence[int] = ()) -> Path:
    """Write the file of a number of ranks; whoever looks for it finds none, or the whole. Returns its path.

    ``nodes``: that of each rank, where they are on several, numbered in the order of their lowest ranks.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = _path(directory, ranks, nodes)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_bytes(_file(ranks, tuple(nodes)))
    draft.replace(path)
    return path


def has(directory: Path, ranks: int, nodes: Sequence[int] = ()) -> bool:
    """Whether that file is there, of this version."""
    begin = _encoded(_begin(ranks, nodes))
    try:
        with _path(directory, ranks, nodes).open("rb") as file:
            return file.read(len(begin)) == begin
    except OSError:
        return False


def _path(directory: Path, ranks: int, nodes: Sequence[int]) -> Path:
    """Of ranks on several nodes by how many are on each, "2+2", or by the node of each, "0,1,0"; where that is too long
    for a file's name, by the number of ranks and a hash of it (FNV-1a): the file says the rest."""
    name = str(ranks)
    if nodes:
        counts = [len(list(group)) for _, group in groupby(nodes)]
        name = "+".join(map(str, counts)) if list(nodes) == sorted(nodes) else ",".join(map(str, nodes))
    if len(name) > _LONGEST_NAME:
        found = 0xCBF29CE484222325
        for byte in name.encode():
            found = (found ^ byte) * 0x100000001B3 % (1 << 64)
        name = f"{ranks}-{found:016x}"
    return directory / f"{name}.plans"


def _begin(ranks: int, nodes: Sequence[int]) -> list[int]:
    return [FORMAT, _native.PLAN_MAGIC, ranks, *(nodes or [0] * ranks)]


def _encoded(numbers: Iterable[int]) -> bytes:
    found = bytearray()
    for number in numbers:
        while number >= 0x80:
            found.append(number & 0x7F | 0x80)
            number >>= 7
        found.append(number)
    return bytes(found)


def _file(ranks: int, nodes: tuple[int, ...]) -> bytes:
    """What the file is; how long ranks wait; its rules; its plans: digests and lengths of every rank's part; these."""
    plans, tuned = _Plans(ranks, nodes), Tunables()
    rules = list(_rules(plans))
    waits = (tuned.patience(crowded=crowded, nodes=bool(nodes)) for crowded in (False, True))
    head = [*_begin(ranks, nodes), *chain.from_iterable(waits)]
    head += [len(rules), len(plans.found), *chain.from_iterable(rules)]
    parts: list[bytes] = []
    for name, schedule in plans.found:
        own = [_encoded(part) for part in _parts(name, schedule, nodes)]
        head += [int(schedule.digest()[:16], 16), *map(len, own)]
        parts += own
    return _encoded(head) + b"".join(parts)


class _Plans:
    """The schedules of a file, each once, in the order in which they were asked for."""

    def __init__(self, ranks: int, nodes: tuple[int, ...]) -> None:
        self.ranks, self.nodes = ranks, nodes
        self.found: list[tuple[str, Schedule]] = []  # with the collective's name
        self._numbers: dict[object, int] = {}  # by key, and by digest

    def taken(self, call: Call, size: int) -> Taken | None:
        """What a call of that size runs. None where nothing keeps its contract, or can be cut as it is."""
        pairwise = call.uneven and KINDS[call.name].cuts and KINDS[call.name].joins  # nobody knows the size of all
        choice = choose(replace(call, size=None if pairwise else size))
        try:
            plan = self._number(call.name, (choice.line.program, call.reproducible), choice.compile)
        except (SumsDiffer, UnevenCounts):
            return None
        find, lends = partial(self._number, call.name), declined(choice, False, True) is None
        instead = (choice.zero_copy(find, inplace) if lends else None for inplace in (True, False))
        in_place, apart = (_NOTHING if number is None else number for number in instead)
        return plan, choice.tile or 0, in_place, apart

    def _number(self, name: str, key: object, compiled: Callable[[], Schedule]) -> int:
        if key not in self._numbers:
            schedule = compiled()
            known = self._numbers.setdefault(schedule.digest(), len(self.found))
            if known == len(self.found):
                self.found.append((name, schedule))
            self._numbers[key] = known
        return self._numbers[key]


def _rules(plans: _Plans) -> Iterator[tuple[int, ...]]:
    """Collective, contract, whether there are more ranks than cores, whether blocks have lengths of their own, the
    sizes from and to, and what a call runs for which all that is so, by numbers that are one more."""
    for number, name in enumerate(_COLLECTIVES):
        for contract, crowded, uneven in product(range(len(_CONTRACTS)), (False, True), (False, True)):
            if (contract and not KINDS[name].combines) or (uneven and not KINDS[name].blocks):
                continue
            call = Call(
                name,
                plans.ranks,
                0,
                reproducible=_CONTRACTS[contract],
                nodes=plans.nodes,
                oversubscribed=crowded,
                uneven=uneven,
            )
            for least, most, found in _ranges(partial(plans.taken, call)):
                if found is not None:
                    plan, tile, *instead = found
                    yield (number, contract, crowded, uneven, least, most, plan, tile, *(n + 1 for n in instead))


def _ranges(taken: Callable[[int], Taken | None]) -> Iterator[tuple[int, int, Taken | None]]:
    """The sizes in bytes that run the same, from and to, as far as powers of two and bisection find them."""
    least = low = 0
    found = taken(0)
    for high in (1 << power for power in range(_LARGEST.bit_length())):
        while taken(high) != found:
            same, other = low, high
            while other - same > 1:
                middle = (same + other) // 2
                same, other = (middle, other) if taken(middle) == found else (same, middle)
            yield least, same, found
            least = low = other
            found = taken(other)
        low = high
    yield least, _LARGEST, found


def _parts(name: str, schedule: Schedule, nodes: Sequence[int]) -> Iterator[list[int]]:
    """Of every rank: how buffers are bound, apart and in place, its plan, and that for buffers that lie apart though
    the schedule is in place, each with its length."""
    ranks = schedule.collective.size
    if not (KINDS[name].reads and KINDS[name].writes):
        _check_renaming(schedule)
    for rank, plan in enumerate(lower_all(schedule, range(ranks), nodes)):
        part: list[int] = []
        for in_place in _IN_PLACE:
            bound = plan.layout.bind(_operands(name, ranks, rank, schedule.collective.chunks, in_place))
            if in_place and name == "reduce_scatter" and plan.layout.alias is not None:
                # MPI wants the sum where the input begins, not in the block of the rank.
                bound = replace(bound, input=Source.SCRATCH, output=Source.NOTHING, initial=Source.X, taken=0)
            part += _binding(bound)
        for words in (plan.words, plan.apart or b""):
            part += (len(words) // 4, *np.frombuffer(words, np.uint32).tolist())
        yield part


def _check_renaming(schedule: Schedule) -> None:
    """Raises InvalidArgument for a span over several units: then renaming ranks and units gives no other root."""
    chunks = schedule.collective.chunks
    for _, _, _, step in schedule.steps():
        for operand in (*step.srcs, *step.dsts):
            place = operand if isinstance(operand, Span) else operand.at
            if place is None or place.buffer == "sc":
                continue
            if len({index // chunks for index in place.indices()}) > 1:
                raise InvalidArgument(f"{schedule.name} moves blocks of several ranks in one step", caller())


def _operands(name: str, ranks: int, rank: int, chunks: int, in_place: bool) -> Operands:
    """The buffers of a call of MPI, with rank 0 for its root."""
    kind = KINDS[name]
    unit = 64 * chunks
    reads, writes = kind.reads or rank == 0, kind.writes or rank == 0
    x = Operand((unit * (ranks if kind.cuts else 1),), _BYTES) if reads else None
    out = Operand((unit * (ranks if kind.joins else 1),), _BYTES) if writes else None
    if x is None or out is None or not (in_place or name == "broadcast"):
        return Operands(x, out)
    own = 0 if kind.cuts == kind.joins else rank * unit
    return Operands(x, out, own if kind.cuts else -own)


def _binding(bound: Bound) -> tuple[int, ...]:
    """What is the input, the output, what is copied to the first of these, and what is the result; whether that copy
    goes to the rank's own unit, and whether the result is copied from there; whether buffers lie apart."""
    sources = bound.input, bound.output, bound.initial, bound.result
    whole = bound.input is Source.NOTHING and bound.initial is not Source.NOTHING
    return (*map(_SOURCES.index, sources), whole, bound.taken is not None, bound.apart)
