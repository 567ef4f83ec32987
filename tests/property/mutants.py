"""Mutation test of the proof: ``python -m tests.property.mutants 300``.

Schedules are damaged in one place: a wait removed, two steps swapped, a receive dropped, a slot less; where messages
lie in place, a place offered or stored to early, or read late, or another chunk for both ends. Whatever the reference
can break by choosing the order of reads and writes, the proof must reject; whatever the proof rejects must have a
witness that the reference replays. Prints mutants tried, killed and accepted.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from msgspec import structs

from hocket import Schedule, prove
from hocket.algorithms import all_pairs, all_to_next, hierarchical, ring, sccl, two_step
from hocket.collectives import members
from hocket.errors import (
    Deadlock,
    InvalidSchedule,
    PostconditionFailed,
    Race,
    UninitializedChunk,
    UnmatchedTransfer,
)
from hocket.ir.chunk_dag import Span
from hocket.ir.schedule import Destination, Rank, Receive, Send, Source, Step, ThreadBlock
from hocket.program import STORAGES
from hocket.semantics import Machine, Stuck
from hocket.verify import both_orders
from tests.property.programs import random_case

Mutant = tuple[str, Schedule]


def mutants(schedule: Schedule) -> Iterator[Mutant]:
    """Every schedule that differs from the given one by one removed wait, swap, dropped receive, slot, or place."""
    for r, b, s, step in schedule.steps():
        steps = schedule.ranks[r].thread_blocks[b].steps
        for k in range(len(step.waits)):
            weaker = structs.replace(step, waits=step.waits[:k] + step.waits[k + 1 :])
            yield "wait removed", _with(schedule, r, b, (*steps[:s], weaker, *steps[s + 1 :]))
        if s + 1 < len(steps):
            yield "steps swapped", _with(schedule, r, b, (*steps[:s], steps[s + 1], step, *steps[s + 2 :]))
        if any(isinstance(source, Receive) for source in step.srcs):
            yield "receive dropped", _without_receive(schedule, r, b, s)
        others = (*steps[:s], *steps[s + 1 :])
        if any(isinstance(target, Send) and target.at is not None for target in step.dsts):
            kind = "stored early" if step.moves else "offered early"
            yield kind, _with(schedule, r, b, (structs.replace(step, waits=()), *others))
        if any(isinstance(source, Receive) and source.pulls for source in step.srcs):
            yield "read late", _with(schedule, r, b, (*others, step))
    for slots in range(1, schedule.slots):
        yield "slots lowered", replace(schedule, slots=slots)
    yield from _elsewhere(schedule)


def _elsewhere(schedule: Schedule) -> Iterator[Mutant]:
    """One message that lies in place lies in the next chunk of its buffer, for both ends."""
    messages: dict[tuple[int, int, int, bool], list[tuple[int, int, int]]] = {}
    for r, b, s, step in schedule.steps():
        for end in (*step.srcs, *step.dsts):
            if not isinstance(end, Span) and end.at is not None:
                sends = isinstance(end, Send)
                key = (r, end.peer, end.channel, True) if sends else (end.peer, r, end.channel, False)
                messages.setdefault(key, []).append((r, b, s))
    for (sender, receiver, channel, sends), places in messages.items():
        if not sends:
            continue
        for ends in zip(places, messages[sender, receiver, channel, False], strict=True):
            mutant = schedule
            for r, b, s in ends:
                steps = schedule.ranks[r].thread_blocks[b].steps
                peer = receiver if r == sender else sender
                mutant = _with(mutant, r, b, (*steps[:s], _moved(steps[s], peer, channel), *steps[s + 1 :]))
            yield "elsewhere", mutant


def _moved(step: Step, peer: int, channel: int) -> Step:
    """The step with the next chunk for its message with a peer, and for what must then be the same."""

    def moved(operand: Source | Destination) -> Source | Destination:
        if isinstance(operand, Span):
            return operand if step.moves else structs.replace(operand, index=operand.index + 1)
        if operand.at is None or (step.moves and (operand.peer, operand.channel) != (peer, channel)):
            return operand
        return structs.replace(operand, at=structs.replace(operand.at, index=operand.at.index + 1))

    return structs.replace(step, srcs=tuple(map(moved, step.srcs)), dsts=tuple(map(moved, step.dsts)))


def _with(schedule: Schedule, r: int, b: int, steps: tuple[Step, ...]) -> Schedule:
    rank = schedule.ranks[r]
    block = structs.replace(rank.thread_blocks[b], steps=steps)
    blocks = (*rank.thread_blocks[:b], block, *rank.thread_blocks[b + 1 :])
    return replace(schedule, ranks=(*schedule.ranks[:r], Rank(rank.scratch, blocks), *schedule.ranks[r + 1 :]))


def _without_receive(schedule: Schedule, r: int, b: int, s: int) -> Schedule:
    """The step no longer receives; a step that does nothing else disappears, and waits for it with it."""
    block = schedule.ranks[r].thread_blocks[b]
    step = block.steps[s]
    local = tuple(source for source in step.srcs if not isinstance(source, Receive))
    if local:
        return _with(schedule, r, b, (*block.steps[:s], structs.replace(step, srcs=local), *block.steps[s + 1 :]))
    shorter = _with(schedule, r, b, (*block.steps[:s], *block.steps[s + 1 :]))

    def moved(old: Step) -> Step:
        waits = (
            structs.replace(w, step=w.step - (w.step > s)) if w.thread_block == b else w
            for w in old.waits
            if (w.thread_block, w.step) != (b, s)
        )
        return structs.replace(old, waits=tuple(waits))

    rank = shorter.ranks[r]
    blocks = tuple(ThreadBlock(x.receives, x.sends, tuple(map(moved, x.steps))) for x in rank.thread_blocks)
    return replace(shorter, ranks=(*shorter.ranks[:r], Rank(rank.scratch, blocks), *shorter.ranks[r + 1 :]))


def broken_by(schedule: Schedule, seed: int, slots: int | None) -> str | None:
    """What goes wrong in one execution, in an order drawn from ``seed``: None if nothing does."""
    collective = schedule.collective
    rng = random.Random(seed)
    ranks = range(collective.size)
    values = {(rank, index): rng.getrandbits(60) for rank in ranks for index in range(collective.inputs(rank))}
    machine = Machine[int](schedule, lambda r, i, _: values[r, i], lambda *terms: sum(terms), slots=slots)
    try:
        machine.run(rng)
    except Stuck:
        return "stuck"
    except (UninitializedChunk, ValueError) as error:
        return type(error).__name__
    for rank in ranks:
        for index, value in enumerate(machine.output(rank)):
            wanted = collective.required(rank, index)
            if wanted is not None and value != sum(values[chunk] for chunk in members(wanted)):
                return "wrong"
    return None


def shows(schedule: Schedule, race: Race, order: list[tuple[int, int]]) -> bool:
    """Whether a permitted execution makes both accesses of a race, or reads what is not there yet."""
    machine = Machine[int](schedule, lambda r, i, _: r * 1000 + i, lambda *terms: sum(terms), slots=None)
    try:
        machine.replay(order)
    except UninitializedChunk:
        return True
    return all(machine.progress((name.rank, name.thread_block)) == name.step + 1 for name in (race.first, race.second))


def check(kind: str, schedule: Schedule, seed: int) -> str:
    """The proof's verdict on a mutant, once the reference has agreed with it."""
    try:
        prove(schedule)
    except (UnmatchedTransfer, InvalidSchedule) as error:
        return error.code
    except Deadlock as error:
        machine = Machine[int](schedule, lambda r, i, _: r + i, lambda *terms: sum(terms), slots=schedule.slots)
        with pytest.raises(Stuck):
            machine.run(random.Random(seed))
        for name in error.cycle:
            assert machine.progress((name.rank, name.thread_block)) <= name.step, kind
        return error.code
    except Race as race:
        assert all(shows(schedule, race, order) for order in both_orders(schedule, race)), kind  # noqa: PT017
        return race.code
    except (PostconditionFailed, UninitializedChunk) as error:
        assert broken_by(schedule, seed, schedule.slots) is not None, kind
        return error.code
    for attempt in range(6):
        slots = schedule.slots if attempt % 2 else None
        assert broken_by(schedule, seed + attempt, slots) is None, (kind, seed, attempt)
    return "accepted"


def library() -> Iterator[Schedule]:
    """Small schedules of every kind of algorithm."""
    for program in (
        ring.all_reduce(3),
        ring.all_reduce(4, channels=2),
        ring.all_gather(3),
        ring.reduce_scatter(3),
        all_pairs.all_reduce(3),
        hierarchical.all_reduce(2, 2, parallel=2),
        two_step.all_to_all(2, 2),
        all_to_next.all_to_next(2, 3),
        sccl.all_gather(),
    ):
        for instances in (1, 2):
            yield program.compile(instances=instances, opcodes=True)
            for storage in STORAGES:
                yield program.compile(instances=instances, storage=storage)


def sweep(programs: int, limit: int | None = None) -> Counter[tuple[str, str]]:
    """Verdicts on the mutants of the library and of random programs, at most ``limit`` a schedule."""
    verdicts: Counter[tuple[str, str]] = Counter()
    schedules = list(library())
    for seed in range(programs):
        rng = random.Random(seed)
        program, slots = random_case(rng).program(), rng.choice((1, 2))
        schedules.append(program.compile(slots=slots, opcodes=rng.random() < 0.5))
        schedules.append(program.compile(slots=slots, storage="peer"))
    for number, schedule in enumerate(schedules):
        found = list(mutants(schedule))
        if limit is not None and len(found) > limit:
            found = random.Random(number).sample(found, limit)
        for kind, mutant in found:
            verdicts[kind, check(kind, mutant, number)] += 1
    return verdicts


def main(programs: int) -> None:
    verdicts = sweep(programs)
    for kind in sorted({kind for kind, _ in verdicts}):
        outcomes = {verdict: n for (k, verdict), n in sorted(verdicts.items()) if k == kind}
        tried, accepted = sum(outcomes.values()), outcomes.pop("accepted", 0)
        print(f"{kind:16} {tried:6} tried  {tried - accepted:6} killed  {accepted:6} accepted   {outcomes}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
