"""What a solver found (SCCL, TACCL, TE-CCL, TACOS), sends of single chunks by steps, traced as a program."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from hocket.collectives import BufferName, Collective, members, whole
from hocket.errors import InvalidArgument, NoLink, caller
from hocket.language import chunk
from hocket.topology import Topology

Send = tuple[int, int, int, int] | tuple[int, int, int, int, str]
"""Step, chunk, source, target, and "reduce" where the target adds it to its own."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A send of a solver; ``number`` is its position in the list."""

    number: int
    step: int
    chunk: int
    source: int
    target: int
    adds: bool


def _chunks(collective: Collective) -> int:
    """How many chunks the sends of a collective may name: places where it sums, otherwise inputs of all ranks."""
    inputs = [collective.inputs(rank) for rank in range(collective.size)]
    return max(inputs) if collective.reduces() else sum(inputs)


def read_sends(collective: Collective, sends: Iterable[Send], topology: Topology | None) -> list[Sent]:
    """Raises InvalidArgument or NoLink with the position of a send that cannot be."""
    if not isinstance(sends, Iterable):
        raise InvalidArgument(f"sends are a list of (step, chunk, source, target), not {sends!r}", caller())
    limits = (None, _chunks(collective), collective.size, collective.size)
    read = [_read_send(number, send, limits) for number, send in enumerate(sends)]
    for sent in read:
        if topology is not None and topology.route(sent.source, sent.target) is None:
            raise NoLink(topology.name, sent.source, sent.target, caller(), sent.number)
    return read


def _read_send(number: int, send: object, limits: Sequence[int | None]) -> Sent:
    words = tuple(send) if isinstance(send, Iterable) and not isinstance(send, str) else ()
    if len(words) not in (4, 5):
        form = '(step, chunk, source, target) or (step, chunk, source, target, "reduce")'
        raise InvalidArgument(f"send {number} must be {form}, not {send!r}", caller())
    numbers: list[int] = []
    for what, word, limit in zip(("step", "chunk", "source", "target"), words[:4], limits, strict=True):
        found = whole(word)
        if found is None:
            raise InvalidArgument(f"send {number}: its {what} must be a whole number, not {word!r}", caller())
        if limit is not None and not 0 <= found < limit:
            raise InvalidArgument(f"send {number}: its {what} must be in [0, {limit}), not {found}", caller())
        numbers.append(found)
    step, moved, source, target = numbers
    if source == target:
        raise InvalidArgument(f"send {number}: rank {source} sends to itself", caller())
    if len(words) == 5 and not (isinstance(words[4], str) and words[4] == "reduce"):
        raise InvalidArgument(f'send {number}: its fifth word must be "reduce", not {words[4]!r}', caller())
    return Sent(number, step, moved, source, target, len(words) == 5)


def trace_sends(collective: Collective, sends: Iterable[Sent]) -> None:
    """In the program that is being traced: step after step, then what outputs must have besides."""
    places = _Places(collective)
    for _, step in groupby(sorted(sends, key=lambda sent: sent.step), key=lambda sent: sent.step):
        places.trace(list(step))
    places.copy_to_outputs()


_Cell = tuple[int, int]
"""A chunk of a rank: (rank, chunk)."""

_Place = tuple[BufferName, int]


class _Places:
    """Where each rank has which chunks, and must have them, while the sends of a solver are traced step by step."""

    def __init__(self, collective: Collective) -> None:
        self._collective = collective
        starts = [0, *accumulate(collective.inputs(rank) for rank in range(collective.size))]
        summed = collective.reduces()
        self._has: dict[_Cell, _Place] = {}
        self._wanted: defaultdict[_Cell, dict[int, None]] = defaultdict(dict)  # indices of the output, each once
        for rank in range(collective.size):
            for i in range(collective.inputs(rank)):
                self._has[rank, i if summed else starts[rank] + i] = "in", i
            for index in range(collective.outputs(rank)):
                for source, i in members(collective.required(rank, index) or ()):
                    self._wanted[rank, i if summed else starts[source] + i][index] = None
        self._scratch = [0] * collective.size
        self._spare: dict[_Cell, _Place] = {}

    def trace(self, sends: Sequence[Sent]) -> None:
        """Trace the sends of one step, each of which reads what was there before the step.

        What arrives at a cell is traced after all sends from it. Where cells wait for each other in a circle, what one
        of them holds is copied to scratch first, and sent from there.
        """
        into: defaultdict[_Cell, list[Sent]] = defaultdict(list)
        out_of: defaultdict[_Cell, dict[int, Sent]] = defaultdict(dict)
        for sent in sends:
            self._check(sent)
            into[sent.target, sent.chunk].append(sent)
            out_of[sent.source, sent.chunk][sent.number] = sent
        kept: dict[_Cell, _Place] = {}
        free = deque(cell for cell in into if cell not in out_of)
        while into:
            if free:
                cell = free.popleft()
            else:
                cell = _in_a_circle(next(iter(into)), out_of)
                kept[cell] = self._keep(cell)
            for sent in into.pop(cell):
                origin = sent.source, sent.chunk
                self._send(sent, kept.get(origin, self._has[origin]))
                del out_of[origin][sent.number]
                if not out_of[origin] and origin in into:
                    free.append(origin)

    def copy_to_outputs(self) -> None:
        """Copy each chunk that a rank has to wherever else its output must have it."""
        for (rank, moved), indices in self._wanted.items():
            place = self._has.get((rank, moved))
            for index in indices:
                if place is not None and not _same(self._collective, rank, place, ("out", index)):
                    chunk(rank, *place).copy(rank, "out", index)

    def _check(self, sent: Sent) -> None:
        what = f"chunk {sent.chunk} before step {sent.step}"
        if (sent.source, sent.chunk) not in self._has:
            raise InvalidArgument(f"send {sent.number}: rank {sent.source} has no {what}", caller())
        if sent.adds and (sent.target, sent.chunk) not in self._has:
            raise InvalidArgument(f"send {sent.number}: rank {sent.target} has no {what} to add to", caller())

    def _send(self, sent: Sent, origin: _Place) -> None:
        cell = sent.target, sent.chunk
        if sent.adds:
            chunk(sent.target, *self._has[cell]).reduce(chunk(sent.source, *origin))
            return
        if cell not in self._has:
            free = [index for index in self._wanted.get(cell, ()) if not self._is_input(sent.target, index)]
            self._has[cell] = ("out", free[0]) if free else self._new(sent.target)
        chunk(sent.source, *origin).copy(sent.target, *self._has[cell])

    def _is_input(self, rank: int, index: int) -> bool:
        """Whether a place of the output is, in place, one of the input, which the rank may have to send yet."""
        physical, offset = self._collective.place(rank, "out")
        wanted, begin = self._collective.place(rank, "in")
        return physical == wanted and 0 <= offset + index - begin < self._collective.inputs(rank)

    def _keep(self, cell: _Cell) -> _Place:
        """Copy what a cell holds to scratch, to a place that later steps use again."""
        if cell not in self._spare:
            self._spare[cell] = self._new(cell[0])
        chunk(cell[0], *self._has[cell]).copy(cell[0], *self._spare[cell])
        return self._spare[cell]

    def _new(self, rank: int) -> _Place:
        self._scratch[rank] += 1
        return "sc", self._scratch[rank] - 1


def _in_a_circle(cell: _Cell, out_of: dict[_Cell, dict[int, Sent]]) -> _Cell:
    """A cell that sends are to leave and to arrive at in turn, found from one of those that all wait for others."""
    seen: set[_Cell] = set()
    while cell not in seen:
        seen.add(cell)
        sent = next(iter(out_of[cell].values()))
        cell = sent.target, sent.chunk
    return cell


def _same(collective: Collective, rank: int, one: _Place, other: _Place) -> bool:
    (buffer, index), (name, at) = one, other
    if "sc" in (buffer, name):
        return one == other
    physical, offset = collective.place(rank, buffer)
    wanted, begin = collective.place(rank, name)
    return (physical, offset + index) == (wanted, begin + at)
