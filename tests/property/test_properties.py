"""Properties of the language, the compiler and the proof, over random programs; CI runs samples of the sweeps."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from hocket import Schedule, prove
from hocket.collectives import members
from hocket.errors import Deadlock, HocketError
from hocket.ir.chunk_dag import ChunkDag
from hocket.ir.instr_dag import Arrival, Departure, InstrDag
from hocket.ir.messages import two_rounds
from hocket.ir.schedule import Receive, Wait
from hocket.ir.text import Stage, parse_instr_dag, parse_schedule, print_instr_dag, print_schedule
from hocket.program import STORAGES
from hocket.semantics import Machine, Stuck
from hocket.verify.events import Events
from tests.property import mutants, sweep
from tests.property.programs import random_case

seeds = st.integers(min_value=0, max_value=2**32)


@settings(max_examples=150, deadline=None)
@given(seeds)
def test_random_programs_are_proven_and_right_in_any_order(seed: int) -> None:
    sweep.check(seed)


def run_instructions(dag: InstrDag, rng: random.Random) -> list[list[Counter[tuple[int, int]] | None]]:
    """Execute an Instruction DAG over multisets, in a random order that its edges permit; the output of each rank."""
    collective = dag.collective
    memory: dict[tuple[int, str, int], Counter[tuple[int, int]]] = {}
    for rank in range(collective.size):
        alias = collective.alias(rank)
        moved = alias if alias is not None and alias.buffer == "in" else None
        for index in range(collective.inputs(rank)):
            place = (rank, moved.target, moved.offset + index) if moved else (rank, "in", index)
            memory[place] = Counter([(rank, index)])
    sent: dict[int, list[Counter[tuple[int, int]]]] = {}
    waiting = set(range(len(dag.instrs)))
    while waiting:
        free = (i for i in sorted(waiting) if not waiting & set(dag.after[i]))
        ready = [i for i in free if all(edge in sent for edge in dag.instrs[i].arrivals)]
        instr = dag.instrs[chosen := rng.choice(ready)]
        waiting.remove(chosen)
        columns = [
            sent[s.edge] if isinstance(s, Arrival) else [memory[s.rank, s.buffer, i] for i in s.indices()]
            for s in instr.srcs
        ]
        values = [sum(column, Counter()) for column in zip(*columns, strict=True)]
        for target in instr.dsts:
            if isinstance(target, Departure):
                sent[target.edge] = values
            else:
                for i, value in zip(target.indices(), values, strict=True):
                    memory[target.rank, target.buffer, i] = value
    outputs = []
    for rank in range(collective.size):
        alias = collective.alias(rank)
        moved = alias if alias is not None and alias.buffer == "out" else None
        names = ((moved.target, moved.offset + i) if moved else ("out", i) for i in range(collective.outputs(rank)))
        outputs.append([memory.get((rank, buffer, i)) for buffer, i in names])
    return outputs


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_every_pass_preserves_meaning(seed: int) -> None:
    rng = random.Random(seed)
    case = random_case(rng)
    stages: dict[str, Stage] = {}
    slots = rng.choice((1, 2, 3))
    case.program().compile(
        instances=rng.choice((1, 2)), slots=slots, observer=lambda name, _, after, __: stages.update({name: after})
    )
    for name in ("lower", "fuse", "channels", "order", "blocks"):
        dag = stages[name]
        assert isinstance(dag, InstrDag)
        for rank, outputs in enumerate(run_instructions(dag, rng)):
            for index, value in enumerate(outputs):
                wanted = dag.collective.required(rank, index)
                assert wanted is None or value == Counter(members(wanted)), (name, rank, index)
    assert isinstance(stages["replicate"], ChunkDag)
    assert isinstance(stages["sync"], Schedule)


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_text_parses_back_to_an_equal_value(seed: int) -> None:
    rng = random.Random(seed)

    def check(name: str, before: Stage, after: Stage, seconds: float) -> None:
        if isinstance(after, InstrDag):
            assert parse_instr_dag(print_instr_dag(after)) == after
        elif isinstance(after, Schedule):
            assert parse_schedule(print_schedule(after)) == after

    schedule = (
        random_case(rng).program().compile(instances=rng.choice((1, 2)), storage=rng.choice(STORAGES), observer=check)
    )
    assert parse_schedule(print_schedule(schedule, locations=False)) == schedule


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_more_slots_never_hurt(seed: int) -> None:
    rng = random.Random(seed)
    schedule = random_case(rng).program().compile(slots=rng.choice((1, 2, 3)), storage=rng.choice(STORAGES))
    for more in (1, 2, 7):
        assert prove(replace(schedule, slots=schedule.slots + more)).slots == schedule.slots
    if schedule.slots > 1:
        with pytest.raises(Deadlock):
            prove(replace(schedule, slots=schedule.slots - 1))


@settings(max_examples=30, deadline=None)
@given(seeds)
def test_one_tile_decides_about_deadlock(seed: int) -> None:
    """Design section 4: what one tile says holds for 2, S + 1 and 2 S + 3 tiles."""
    rng = random.Random(seed)
    schedule = random_case(rng).program().compile(slots=rng.choice((1, 2, 3)), storage=rng.choice(STORAGES))
    swapped = [mutant for kind, mutant in mutants.mutants(schedule) if kind in ("steps swapped", "slots lowered")]
    for candidate in [schedule, *rng.sample(swapped, min(5, len(swapped)))]:
        try:
            prove(candidate)
            deadlock = False
        except Deadlock:
            deadlock = True
        except HocketError:
            continue
        for tiles in (1, 2, candidate.slots + 1, 2 * candidate.slots + 3):
            slots = candidate.slots
            machine = Machine[int](
                candidate, lambda r, i, t: r + i + t, lambda *terms: sum(terms), slots=slots, tiles=tiles
            )
            try:
                machine.run(rng)
                stuck = False
            except Stuck:
                stuck = True
            assert stuck == deadlock, tiles


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_no_rank_is_visited_after_it_has_left(seed: int) -> None:
    """A rank leaves when its steps are done and what is pulled from it has been received."""
    rng = random.Random(seed)
    schedule = random_case(rng).program().compile(storage="peer")
    machine = Machine[int](schedule, lambda r, i, _: r + i, lambda *terms: sum(terms), slots=schedule.slots)
    steps = {(r, b): block.steps for r, rank in enumerate(schedule.ranks) for b, block in enumerate(rank.thread_blocks)}

    def left(rank: int) -> bool:
        waits_for = [place for place, its in steps.items() if machine.progress(place) < len(its)]
        pulls = (
            any(isinstance(s, Receive) and s.pulls and s.peer == rank for s in step.srcs)
            for place in waits_for
            for step in steps[place][machine.progress(place) :]
        )
        return not any(place[0] == rank for place in waits_for) and not any(pulls)

    while running := [place for place, its in steps.items() if machine.progress(place) < len(its)]:
        place = rng.choice([place for place in running if machine.ready(place)])
        step = steps[place][machine.progress(place)]
        for span in (*step.reads(), *step.writes()):
            assert not left(span.rank)
        machine.event(place)


@settings(max_examples=20, deadline=None)
@given(seeds)
def test_in_two_rounds_no_rank_needs_what_another_does(seed: int) -> None:
    """No step that moves data comes after one of another rank."""
    compiled = (random_case(random.Random(s)).program().compile(storage="peer") for s in itertools.count(seed))
    schedule = next(schedule for schedule in compiled if two_rounds(schedule))  # one of ten
    events = Events(schedule)
    needed: list[set[int]] = [set() for _ in events.steps]  # the ranks that have moved something before
    for i in events.least_slots(schedule.slots)[1]:
        for j in events.before[i]:
            needed[i] |= needed[j] | ({events.rank[j]} if events.steps[j].moves else set())
        assert not events.steps[i].moves or needed[i] <= {events.rank[i]}


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_a_redundant_wait_may_be_there_and_may_go(seed: int) -> None:
    schedule = random_case(random.Random(seed)).program().compile()
    for r, rank in enumerate(schedule.ranks):
        for b, block in enumerate(rank.thread_blocks):
            for s, step in enumerate(block.steps[1:], 1):
                earlier = block.steps[s - 1].waits
                if earlier and not step.waits:
                    more = structs.replace(step, waits=(Wait(earlier[0].thread_block, earlier[0].step),))
                    steps = (*block.steps[:s], more, *block.steps[s + 1 :])
                    doubled = mutants._with(schedule, r, b, steps)
                    assert prove(doubled) == prove(schedule)
                    return


@pytest.mark.campaign
def test_mutants_are_killed_or_harmless() -> None:
    verdicts = mutants.sweep(programs=25, limit=25)
    kinds = Counter(kind for kind, _ in verdicts.elements())
    assert kinds.keys() == {
        "wait removed",
        "steps swapped",
        "receive dropped",
        "slots lowered",
        "offered early",
        "stored early",
        "read late",
        "elsewhere",
    }
    for needed in ("race", "deadlock", "postcondition", "unmatched-transfer", "uninitialized-chunk", "accepted"):
        assert any(verdict == needed for _, verdict in verdicts), needed
    assert not any(verdict == "accepted" for kind, verdict in verdicts if kind in ("receive dropped", "slots lowered"))
