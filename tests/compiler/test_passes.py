"""Properties of each pass, on the programs of the library."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace

import pytest

from hocket import AllReduce, Broadcast, Custom, Program, Schedule, chunk, parallelize
from hocket.algorithms import all_pairs, all_to_next, hierarchical, ring, sccl, two_step
from hocket.compiler import pipeline
from hocket.compiler.lower import lower
from hocket.compiler.pipeline import PASSES, Options, Pass, verify
from hocket.compiler.replicate import replicate
from hocket.errors import InvalidSchedule
from hocket.ir.chunk_dag import ChunkDag, Span
from hocket.ir.instr_dag import InstrDag, opcode
from hocket.ir.schedule import Receive, Send
from hocket.ir.text import Stage, print_instr_dag, print_stage
from tests.reference import check

LIBRARY: dict[str, Callable[[], Program]] = {
    "ring": lambda: ring.all_reduce(5),
    "ring_channels": lambda: ring.all_reduce(4, 3),
    "all_gather": lambda: ring.all_gather(4, 2),
    "reduce_scatter": lambda: ring.reduce_scatter(4),
    "all_pairs": lambda: all_pairs.all_reduce(4),
    "hierarchical": lambda: hierarchical.all_reduce(2, 3, 2),
    "two_step": lambda: two_step.all_to_all(2, 3),
    "all_to_next": lambda: all_to_next.all_to_next(2, 3),
    "sccl": sccl.all_gather,
}
every_program = pytest.mark.parametrize("name", LIBRARY)


def run(program: Program, **options: int) -> dict[str, tuple[Stage, Stage]]:
    """For each pass what it got and what it made."""
    seen: dict[str, tuple[Stage, Stage]] = {}

    def observe(name: str, before: Stage, after: Stage, seconds: float) -> None:
        assert seconds >= 0
        seen[name] = before, after

    program.compile(observer=observe, **options)  # type: ignore[arg-type]
    return seen


def instrs(stage: Stage) -> InstrDag:
    assert isinstance(stage, InstrDag)
    return stage


def test_passes_have_names_and_one_line_each() -> None:
    assert [p.name for p in PASSES] == [
        "replicate",
        "lower",
        "accumulate",
        "fuse",
        "channels",
        "order",
        "merge",
        "peer",
        "blocks",
        "sync",
    ]
    assert all(p.doc and "\n" not in p.doc for p in PASSES)


@every_program
def test_each_pass_begins_with_what_the_one_before_made(name: str) -> None:
    program = LIBRARY[name]()
    seen = run(program, instances=2)
    stages = [program.chunk_dag] + [after for _, after in seen.values()]
    for (before, _), made in zip(seen.values(), stages, strict=False):
        assert before == made
    for stage in stages:
        verify(stage)


@every_program
def test_passes_change_nothing_they_are_given(name: str) -> None:
    program = LIBRARY[name]()
    texts = []
    for _ in range(2):
        kept = {step: (before, print_stage(before)) for step, (before, _) in run(program).items()}
        assert all(print_stage(before) == text for before, text in kept.values())
        texts.append({step: text for step, (_, text) in kept.items()})
    assert texts[0] == texts[1]


@every_program
def test_a_schedule_is_a_plain_value(name: str) -> None:
    schedule = LIBRARY[name]().compile()
    for other in (pickle.loads(pickle.dumps(schedule)), copy.deepcopy(schedule)):
        assert other == schedule
        assert hash(other) == hash(schedule)
        assert other.digest() == schedule.digest()
        assert print_stage(other) == print_stage(schedule)


# Replication --------------------------------------------------------------------------------------------------


def mixed() -> Program:
    """Operations on one and on two chunks, split in two, in three and not at all."""
    with Program(AllReduce(2, chunks=2, inplace=True)) as p:
        with parallelize(2):
            total = chunk(0, "in", 0, 2).reduce(chunk(1, "in", 0, 2))
        with parallelize(3):
            total.copy(1, "sc", 0)
        chunk(1, "sc", 0).copy(1, "in", 0)
        with parallelize(2):
            chunk(1, "sc", 1).copy(1, "in", 1)
    return p


def test_chunks_are_cut_by_the_least_common_multiple() -> None:
    dag = mixed().chunk_dag
    assert replicate(dag, 2).refinement == 12
    finer = replicate(dag, 1)
    assert finer.refinement == 6
    assert finer.collective == AllReduce(2, chunks=12, inplace=True)
    assert finer.scratch == (0, 12)
    check(mixed().compile(), 1000, seeds=range(10))
    check(mixed().compile(instances=2), 1000, seeds=range(10))


def test_instances_work_on_their_share_of_each_chunk() -> None:
    """Instance j of n on the j-th n-th of every chunk, whichever span can say so."""
    nodes = [node for _, node in replicate(mixed().chunk_dag, 1).operations()]
    spans = [(node.hints.instance, node.dst) for node in nodes]
    assert spans[:4] == [
        (0, Span(0, "in", 0, 3)),
        (0, Span(0, "in", 6, 3)),
        (1, Span(0, "in", 3, 3)),
        (1, Span(0, "in", 9, 3)),
    ]
    assert spans[4:6] == [(0, Span(1, "sc", 0, 2)), (0, Span(1, "sc", 6, 2))]
    assert spans[10] == (0, Span(1, "in", 0, 6))
    assert spans[11:] == [(0, Span(1, "in", 6, 3)), (1, Span(1, "in", 9, 3))]


def test_one_chunk_of_each_is_one_span_with_a_stride() -> None:
    with Program(AllReduce(2, chunks=3, inplace=True)) as p, parallelize(4):
        chunk(0, "in", 0, 3).reduce(chunk(1, "in", 0, 3))
    nodes = [node for _, node in replicate(p.chunk_dag, 1).operations()]
    assert [node.dst for node in nodes] == [Span(0, "in", j, 3, 4) for j in range(4)]


@every_program
@pytest.mark.parametrize("instances", [2, 3])
def test_instances_touch_every_chunk_once_as_often_as_before(name: str, instances: int) -> None:
    dag = LIBRARY[name]().chunk_dag
    finer = replicate(dag, instances)

    def touched(of: ChunkDag, cut: int) -> dict[tuple[int, str, int], int]:
        found: dict[tuple[int, str, int], int] = {}
        for _, node in of.operations():
            for index in node.dst.indices():
                for part in range(cut):
                    key = node.dst.rank, node.dst.buffer, index * cut + part
                    found[key] = found.get(key, 0) + 1
        return found

    assert touched(finer, 1) == touched(dag, finer.refinement)


@every_program
def test_one_instance_is_the_program_itself(name: str) -> None:
    dag = LIBRARY[name]().chunk_dag
    if all(node.hints.instances == 1 for _, node in dag.operations()):
        assert replicate(dag, 1) is dag


@every_program
def test_instances_do_not_share_channels(name: str) -> None:
    stage = instrs(run(LIBRARY[name](), instances=3)["channels"][1])
    owner: dict[tuple[int, int, int | None], int] = {}
    for number, edge in enumerate(stage.edges):
        assert owner.setdefault((edge.src, edge.dst, stage.channel(number)), edge.instance) == edge.instance


# Lowering -----------------------------------------------------------------------------------------------------


def test_each_operation_becomes_one_or_two_instructions() -> None:
    with Program(Custom(2, inputs=2, outputs=2, post=lambda r, i: None)) as p:
        chunk(0, "in", 0).copy(0, "out", 0)
        chunk(0, "out", 0).reduce(chunk(0, "in", 1))
        chunk(0, "out", 0).copy(1, "sc", 3)
        chunk(1, "sc", 3).reduce(chunk(0, "in", 1))
    assert print_instr_dag(lower(p.chunk_dag), locations=False).splitlines()[5:] == [
        "edge 0: 0 -> 1 x1",
        "edge 1: 0 -> 1 x1",
        "0: @0 copy in[0] -> out[0]",
        "1: @0 reduce out[0] in[1] -> out[0]  after 0",
        "2: @0 send out[0] -> >0  after 1",
        "3: @1 recv <0 -> sc[3]",
        "4: @0 send in[1] -> >1",
        "5: @1 rrc <1 sc[3] -> sc[3]  after 3",
    ]


def test_opcodes_are_shapes() -> None:
    """Received, local sources; sent, local destinations."""
    assert [opcode(shape) for shape in ((0, 1, 1, 0), (1, 0, 0, 1), (0, 1, 0, 1))] == ["send", "recv", "copy"]
    assert [opcode(shape) for shape in ((0, 2, 0, 1), (1, 1, 0, 1), (1, 0, 1, 1))] == ["reduce", "rrc", "rcs"]
    assert [opcode(shape) for shape in ((1, 1, 1, 0), (1, 1, 1, 1))] == ["rrs", "rrcs"]
    assert opcode((2, 1, 2, 2)) == "r2l1-s2l2"


def _broken(name: str, damage: Callable[[Stage], Stage]) -> tuple[Pass, ...]:
    def wrong(p: Pass) -> Callable[[Stage, Options], Stage]:
        return lambda stage, options: damage(p.run(stage, options))

    return tuple(replace(p, run=wrong(p)) if p.name == name else p for p in PASSES)


def test_an_observer_never_sees_a_stage_that_breaks_its_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "PASSES", _broken("fuse", lambda stage: replace(instrs(stage), scratch=())))
    seen: list[str] = []
    with pytest.raises(InvalidSchedule, match="0 sizes of scratch for 3 ranks"):
        ring.all_reduce(3).compile(observer=lambda name, *_: seen.append(name))
    assert seen == ["replicate", "lower", "accumulate"]


def test_no_schedule_that_breaks_its_form_leaves_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def damage(stage: Stage) -> Stage:
        assert isinstance(stage, Schedule)
        return replace(stage, slots=0)

    monkeypatch.setattr(pipeline, "PASSES", _broken("sync", damage))
    with pytest.raises(InvalidSchedule, match="at least one slot"):
        ring.all_reduce(3).compile()


# Channels, order, thread blocks -------------------------------------------------------------------------------


@every_program
def test_a_fused_chain_shares_one_channel(name: str) -> None:
    stage = instrs(run(LIBRARY[name](), instances=2)["channels"][1])
    for instr in stage.instrs:
        assert len({stage.channel(edge) for edge in (*instr.arrivals, *instr.departures)}) <= 1


@every_program
def test_directives_are_kept(name: str) -> None:
    seen = run(LIBRARY[name]())
    wanted, given = instrs(seen["lower"][1]).edges, instrs(seen["channels"][1]).edges
    for before, after in zip(wanted, given, strict=True):
        assert after.base is not None
        assert before.base in (None, after.base)


def test_without_directives_the_lowest_channel_is_used() -> None:
    with Program(Broadcast(3, chunks=2)) as p:
        chunk(0, "in", 0, 2).copy(0, "out", 0)
        for i in range(2):
            chunk(0, "in", i).copy(1 + i, "out", i).copy(2 - i, "out", i)
    schedule = p.compile()
    assert {e.channel for rank in schedule.ranks for block in rank.thread_blocks for e in block.sends} == {0}


def test_flows_that_part_on_a_rank_get_channels_of_their_own() -> None:
    """0 -> 1 -> 2 and 0 -> 1 -> 3, both fused on rank 1: two thread blocks, so two channels."""
    with Program(Broadcast(4, chunks=2)) as p:
        chunk(0, "in", 0, 2).copy(0, "out", 0)
        for i in range(2):
            chunk(0, "in", i).copy(1, "out", i).copy(2 + i, "out", i).copy(3 - i, "out", i)
    schedule = p.compile()
    assert len(schedule.ranks[1].thread_blocks) == 2
    assert {block.receives[0].channel for block in schedule.ranks[1].thread_blocks} == {0, 1}
    check(schedule, 17)


@every_program
@pytest.mark.parametrize("slots", [1, 2, 5])
def test_the_order_is_a_permutation_that_cuts_at_most(name: str, slots: int) -> None:
    seen = run(LIBRARY[name](), slots=slots)
    before, after = (instrs(stage) for stage in seen["order"])
    sent = [sorted(e for i in stage.instrs for e in i.departures) for stage in (before, after)]
    assert sent[0] == sent[1] == list(range(len(after.edges)))
    assert len(after.instrs) >= len(before.instrs)
    assert all(b < i for i, earlier in enumerate(after.after) for b in earlier)
    queues: dict[tuple[int, int, int | None], list[int]] = {}
    for instr in after.instrs:
        for number in instr.arrivals:
            edge = after.edges[number]
            assert queues[edge.src, edge.dst, after.channel(number)].pop(0) == number
        for number in instr.departures:
            edge = after.edges[number]
            queue = queues.setdefault((edge.src, edge.dst, after.channel(number)), [])
            queue.append(number)
            assert len(queue) <= slots
    assert not any(queues.values())


@every_program
@pytest.mark.parametrize("instances", [1, 2])
def test_a_thread_block_has_at_most_one_peer_each_way_and_a_connection_one_block(name: str, instances: int) -> None:
    schedule = LIBRARY[name]().compile(instances=instances, opcodes=True)
    for rank in schedule.ranks:
        ends: list[Send | Receive] = []
        for block in rank.thread_blocks:
            assert len(block.receives) <= 1
            assert len(block.sends) <= 1
            ends += [*block.receives, *block.sends]
        assert len(ends) == len(set(ends))


@every_program
def test_no_wait_is_implied_by_the_others(name: str) -> None:
    schedule = LIBRARY[name]().compile(instances=2)
    for rank in schedule.ranks:
        steps = [(b, s) for b, block in enumerate(rank.thread_blocks) for s in range(len(block.steps))]
        before: dict[tuple[int, int], list[tuple[int, int]]] = {
            (b, s): [(b, s - 1)] * (s > 0) + [(w.thread_block, w.step) for w in rank.thread_blocks[b].steps[s].waits]
            for b, s in steps
        }

        for b, s in steps:
            for wait in rank.thread_blocks[b].steps[s].waits:
                goal = wait.thread_block, wait.step
                frontier = [at for at in before[b, s] if at != goal]
                seen = set(frontier)
                while frontier:
                    fresh = [at for at in before[frontier.pop()] if at not in seen]
                    seen.update(fresh)
                    frontier += fresh
                assert goal not in seen, f"thread block {b} step {s} need not wait for {goal}"


def test_a_rank_without_work_has_an_empty_thread_block() -> None:
    with Program(Custom(3, inputs=[1, 0, 0], outputs=[0, 1, 0], post=lambda r, i: {(0, 0)})) as p:
        chunk(0, "in", 0).copy(1, "out", 0)
    schedule = p.compile()
    assert [len(block.steps) for block in schedule.ranks[2].thread_blocks] in ([], [0])


def test_local_operations_are_spread() -> None:
    """Sixteen local copies beside two connections: neither thread block gets them all."""
    with Program(Custom(2, inputs=16, outputs=17, post=lambda r, i: None)) as p:
        chunk(0, "in", 0).copy(1, "out", 16)
        chunk(1, "in", 0).copy(0, "out", 16)
        for rank in range(2):
            for i in range(16):
                chunk(rank, "in", i).copy(rank, "out", i)
    for part in p.compile().ranks:
        assert [len(block.steps) for block in part.thread_blocks] == [8, 9]  # one copy is of what is sent


@every_program
def test_more_slots_than_it_needs_change_nothing(name: str) -> None:
    program = LIBRARY[name]()
    schedules: list[Schedule] = [program.compile(slots=slots) for slots in (100, 1000)]
    assert schedules[0] == schedules[1]
    assert all(schedule.slots <= 100 for schedule in schedules)
