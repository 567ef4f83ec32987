"""Files of plans say what the table of tuning says, for every size; and can have another root."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import TypeVar

import pytest
from msgspec import structs

from hocket import Program, Scatter, _native, chunk, plan_files, prove
from hocket.algorithms import ring, two_level
from hocket.errors import InvalidArgument, SumsDiffer, UnevenCounts
from hocket.ir.chunk_dag import Span
from hocket.ir.schedule import Receive, Schedule, Send, ThreadBlock
from hocket.plan_files import FORMAT, _check_renaming
from hocket.program import Contract
from hocket.tuning import KINDS, Call, choose, declined, zero_copy_program

COLLECTIVES = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all")
CONTRACTS: tuple[Contract | None, ...] = (None, "rank-order")
Nodes = tuple[int, ...]
RANKS = (2, 3, 4, 5)
PLACED: tuple[tuple[int, Nodes], ...] = ((2, (0, 1)), (3, (0, 1, 0)), (4, (0, 0, 1, 2)))
CASES: tuple[tuple[int, Nodes], ...] = (*((ranks, ()) for ranks in RANKS), *PLACED)
"""Numbers of ranks, and the node of each where they are on several."""
Operand = TypeVar("Operand", Span, Receive, Send)
SIZES = sorted({max(0, size + beside) for size in (0, *(1 << power for power in range(34))) for beside in (-1, 0, 1)})
SIZES += [3 << 10, 100_000, 300_001, 1_000_000, 25_000_000, 1 << 40]


@dataclass(frozen=True)
class Rule:
    collective: int
    contract: int
    crowded: int
    uneven: int
    least: int
    most: int
    plan: int
    tile: int
    in_place: int
    apart: int


@dataclass(frozen=True)
class File:
    """What native/mpi/plan_file.cpp reads."""

    rules: tuple[Rule, ...]
    digests: tuple[int, ...]
    parts: tuple[tuple[bytes, ...], ...]

    @staticmethod
    def read(path: Path, ranks: int, nodes: Nodes) -> File:
        data, at = path.read_bytes(), 0

        def number() -> int:
            nonlocal at
            found, shift = 0, 0
            while True:
                byte, at = data[at], at + 1
                found |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    return found

        assert [number() for _ in range(3)] == [FORMAT, _native.PLAN_MAGIC, ranks]
        assert tuple(number() for _ in range(ranks)) == (nodes or (0,) * ranks)
        for _ in range(4):
            number()
        rules, plans = number(), number()
        found = tuple(Rule(*(number() for _ in range(10))) for _ in range(rules))
        digests, lengths = [], []
        for _ in range(plans):
            digests.append(number())
            lengths.append([number() for _ in range(ranks)])
        parts = []
        for own in lengths:
            parts.append(tuple(data[at + sum(own[:r]) : at + sum(own[: r + 1])] for r in range(ranks)))
            at += sum(own)
        assert at == len(data)
        return File(found, tuple(digests), tuple(parts))

    def rule(self, collective: int, contract: int, crowded: bool, uneven: bool, size: int) -> Rule | None:
        wanted = collective, contract, crowded, uneven
        return next(
            (
                rule
                for rule in self.rules
                if (rule.collective, rule.contract, rule.crowded, rule.uneven) == wanted
                and rule.least <= size <= rule.most
            ),
            None,
        )


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, Nodes], File]:
    folder = tmp_path_factory.mktemp("plans")
    return {case: File.read(plan_files.write(folder, *case), *case) for case in CASES}


@cache
def compiled(call: Call) -> int | None:
    """The digest of what a call runs, as a file has it; None where it cannot."""
    try:
        return _digest(choose(call).compile().digest())
    except (SumsDiffer, UnevenCounts):
        return None


@cache
def _lent(name: str, ranks: int, contract: Contract | None, *, inplace: bool) -> int | None:
    program = zero_copy_program(name, ranks, 0, contract, inplace=inplace)
    return program and _digest(program.compile(reproducible=contract, storage="peer").digest())


def _digest(text: str) -> int:
    return int(text[:16], 16)


@pytest.mark.parametrize(("ranks", "nodes"), CASES, ids=str)
def test_every_size_runs_what_the_table_says(files: dict[tuple[int, Nodes], File], ranks: int, nodes: Nodes) -> None:
    file = files[ranks, nodes]
    same: dict[object, int | None] = {}
    for number, name in enumerate(COLLECTIVES):
        for contract, crowded, uneven in product((0, 1), (False, True), (False, True)):
            if (contract and not KINDS[name].combines) or (uneven and not KINDS[name].blocks):
                assert not file.rule(number, contract, crowded, uneven, 0)
                continue
            for size in SIZES:
                known = None if name == "all_to_all" and uneven else size
                call = Call(
                    name,
                    ranks,
                    known,
                    reproducible=CONTRACTS[contract],
                    nodes=nodes,
                    oversubscribed=crowded,
                    uneven=uneven,
                )
                choice = choose(call)
                key = choice.key, crowded
                if key not in same:
                    same[key] = compiled(call)
                rule, case = file.rule(number, contract, crowded, uneven, size), (name, contract, crowded, uneven, size)
                if same[key] is None:
                    assert rule is None, case
                    continue
                assert rule is not None, case
                assert (file.digests[rule.plan], rule.tile) == (same[key], choice.tile or 0), case
                offered = not declined(choice, one_round=False, attached=True)
                for inplace, instead in ((True, rule.in_place), (False, rule.apart)):
                    lent = _lent(name, ranks, CONTRACTS[contract], inplace=inplace) if offered else None
                    assert (file.digests[instead - 1] if instead else None) == lent, case


@pytest.mark.parametrize("ranks", RANKS)
def test_only_a_reduce_in_the_order_of_ranks_may_have_no_plan(files: dict[tuple[int, Nodes], File], ranks: int) -> None:
    """The library takes it as an AllReduce, which has one."""
    without = {
        (name, contract)
        for (number, name), contract, crowded, uneven in product(enumerate(COLLECTIVES), *[(0, 1)] * 3)
        if (KINDS[name].combines or not contract) and (KINDS[name].blocks or not uneven)
        for size in SIZES
        if files[ranks, ()].rule(number, contract, bool(crowded), bool(uneven), size) is None
    }
    assert without == ({("reduce", 1)} if ranks > 2 else set())


@pytest.mark.parametrize("program", [ring.reduce_scatter(3), two_level.reduce_scatter((0, 1, 1))], ids=str)
def test_a_sum_in_place_goes_to_where_the_input_begins(program: Program) -> None:
    """As MPI has it; a schedule in place leaves it in the block of the rank."""
    for part in plan_files._parts("reduce_scatter", program.compile(), ()):
        which = "input", "output", "initial", "result", "to_own", "taken", "apart"
        found = dict(zip(which, part[len(which) :], strict=False))
        scratch, x, out = 3, 1, 2
        assert found == {**dict.fromkeys(which, 0), "input": scratch, "initial": x, "result": out, "taken": 1}


def test_long_placements_have_short_names() -> None:
    """As native/mpi/plan_file.cpp has them."""
    nodes = tuple(rank % 50 for rank in range(100))
    assert plan_files._path(Path(), 100, nodes).name == "100-dfc34382d66d3233.plans"
    assert plan_files._path(Path(), 100, (*nodes[:-2], 49, 48)) != plan_files._path(Path(), 100, nodes)
    assert plan_files._path(Path(), 50, (*range(50),)).name == "+".join(["1"] * 50) + ".plans"


# ---------------------------------------------------------------------------------------------------------------
# Another root


def players(root: int, ranks: int, nodes: Nodes) -> list[int]:
    """Who does what each rank of a plan does (native/mpi/group.cpp: cast)."""
    if not nodes:
        return [(rank + root) % ranks for rank in range(ranks)]
    firsts, others = ([r for r in range(ranks) if nodes[r] == nodes[one]] for one in (0, root))
    at = others.index(root)
    others[0], others[at] = others[at], others[0]
    found = list(range(ranks))
    for first, other in zip(firsts, others, strict=True):
        found[first], found[other] = other, first
    return found


def renamed(schedule: Schedule, given: list[int]) -> Schedule:
    """What the library makes of a schedule whose root is rank 0.

    ``given[r]`` does what rank r does, and has its block of the root's larger buffer.
    """
    c = schedule.collective
    larger = {"gather": "out", "scatter": "in"}.get(c.name)

    def span(at: Span) -> Span:
        unit, chunk = divmod(at.index, c.chunks)
        unit = given[unit] if at.rank == 0 and at.buffer == larger else unit
        return structs.replace(at, rank=given[at.rank], index=unit * c.chunks + chunk)

    def operand(placed: Operand) -> Operand:
        if isinstance(placed, Span):
            return span(placed)
        return structs.replace(placed, peer=given[placed.peer], at=placed.at and span(placed.at))

    def block(one: ThreadBlock) -> ThreadBlock:
        steps = [
            structs.replace(step, srcs=tuple(map(operand, step.srcs)), dsts=tuple(map(operand, step.dsts)))
            for step in one.steps
        ]
        return ThreadBlock(tuple(map(operand, one.receives)), tuple(map(operand, one.sends)), tuple(steps))

    ranks = [
        replace(rank, thread_blocks=tuple(map(block, rank.thread_blocks)))
        for rank in (schedule.ranks[given.index(r)] for r in range(c.size))
    ]
    return replace(schedule, collective=replace(c, root=given[0]), ranks=tuple(ranks))


@pytest.mark.parametrize("name", ["broadcast", "reduce", "gather", "scatter"])
@pytest.mark.parametrize(("ranks", "nodes"), [*CASES, (4, (0, 1, 1, 0)), (5, (0, 0, 1, 1, 2))], ids=str)
def test_a_schedule_with_another_root_is_proven(name: str, ranks: int, nodes: Nodes) -> None:
    """On several nodes, that of a rank whose node has as many; ranks of one node are on one again."""
    calls = [
        Call(name, ranks, size, nodes=nodes, oversubscribed=crowded) for size in SIZES for crowded in (False, True)
    ]
    found = [choice.compile() for choice in {choice.key: choice for choice in map(choose, calls)}.values()]
    for inplace in (False, True):
        if not nodes and (program := zero_copy_program(name, ranks, inplace=inplace)):
            found.append(program.compile(storage="peer"))
    for schedule, root in product(found, range(ranks)):
        if nodes and nodes.count(nodes[root]) != nodes.count(nodes[0]):
            continue
        given = players(root, ranks, nodes)
        assert given[0] == root
        pairs = product(range(ranks), repeat=2) if nodes else ()
        assert all((nodes[a] == nodes[b]) == (nodes[given[a]] == nodes[given[b]]) for a, b in pairs)
        prove(renamed(schedule, given))
        _check_renaming(schedule)


def test_a_schedule_that_moves_several_blocks_at_once_is_refused() -> None:
    with Program(Scatter(3)) as p:
        chunk(0, "in", 0).copy(0, "out", 0)
        chunk(0, "in", 1, 2).copy(1, "sc", 0)
        chunk(1, "sc", 0).copy(1, "out", 0)
        chunk(1, "sc", 1).copy(2, "out", 0)
    schedule = p.compile()
    with pytest.raises(InvalidArgument, match="moves blocks of several ranks in one step"):
        _check_renaming(schedule)
