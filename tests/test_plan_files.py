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
from hocket.errors import InvalidArgument, SumsDiffer, UnevenCounts
from hocket.ir.chunk_dag import Span
from hocket.ir.schedule import Receive, Schedule, Send, ThreadBlock
from hocket.plan_files import FORMAT, _check_renaming
from hocket.program import Contract
from hocket.tuning import KINDS, Call, choose, declined, zero_copy_program

COLLECTIVES = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all")
CONTRACTS: tuple[Contract | None, ...] = (None, "rank-order")
RANKS = (2, 3, 4, 5)
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
    def read(path: Path, ranks: int) -> File:
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
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[int, File]:
    folder = tmp_path_factory.mktemp("plans")
    return {ranks: File.read(plan_files.write(folder, ranks), ranks) for ranks in RANKS}


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


@pytest.mark.parametrize("ranks", RANKS)
def test_every_size_runs_what_the_table_says(files: dict[int, File], ranks: int) -> None:
    file = files[ranks]
    same: dict[object, int | None] = {}
    for number, name in enumerate(COLLECTIVES):
        for contract, crowded, uneven in product((0, 1), (False, True), (False, True)):
            if (contract and not KINDS[name].combines) or (uneven and not KINDS[name].blocks):
                assert not file.rule(number, contract, crowded, uneven, 0)
                continue
            for size in SIZES:
                known = None if name == "all_to_all" and uneven else size
                call = Call(name, ranks, known, reproducible=CONTRACTS[contract], oversubscribed=crowded, uneven=uneven)
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
def test_only_a_reduce_in_the_order_of_ranks_may_have_no_plan(files: dict[int, File], ranks: int) -> None:
    """The library takes it as an AllReduce, which has one."""
    without = {
        (name, contract)
        for (number, name), contract, crowded, uneven in product(enumerate(COLLECTIVES), *[(0, 1)] * 3)
        if (KINDS[name].combines or not contract) and (KINDS[name].blocks or not uneven)
        for size in SIZES
        if files[ranks].rule(number, contract, bool(crowded), bool(uneven), size) is None
    }
    assert without == ({("reduce", 1)} if ranks > 2 else set())


# ---------------------------------------------------------------------------------------------------------------
# Another root


def renamed(schedule: Schedule, root: int) -> Schedule:
    """What the library makes of a schedule whose root is rank 0: ranks lie as far behind the new root, and so do the
    blocks of the root's larger buffer."""
    c = schedule.collective
    larger = {"gather": "out", "scatter": "in"}.get(c.name)

    def behind(rank: int) -> int:
        return (rank + root) % c.size

    def span(at: Span) -> Span:
        unit, chunk = divmod(at.index, c.chunks)
        unit = behind(unit) if at.rank == 0 and at.buffer == larger else unit
        return structs.replace(at, rank=behind(at.rank), index=unit * c.chunks + chunk)

    def operand(given: Operand) -> Operand:
        if isinstance(given, Span):
            return span(given)
        return structs.replace(given, peer=behind(given.peer), at=given.at and span(given.at))

    def block(given: ThreadBlock) -> ThreadBlock:
        steps = [
            structs.replace(step, srcs=tuple(map(operand, step.srcs)), dsts=tuple(map(operand, step.dsts)))
            for step in given.steps
        ]
        return ThreadBlock(tuple(map(operand, given.receives)), tuple(map(operand, given.sends)), tuple(steps))

    ranks = [
        replace(rank, thread_blocks=tuple(map(block, rank.thread_blocks)))
        for rank in (schedule.ranks[(r - root) % c.size] for r in range(c.size))
    ]
    return replace(schedule, collective=replace(c, root=root), ranks=tuple(ranks))


@pytest.mark.parametrize("name", ["broadcast", "reduce", "gather", "scatter"])
@pytest.mark.parametrize("ranks", RANKS)
def test_a_schedule_with_another_root_is_proven(name: str, ranks: int) -> None:
    calls = [Call(name, ranks, size, oversubscribed=crowded) for size in SIZES for crowded in (False, True)]
    found = [choice.compile() for choice in {choice.key: choice for choice in map(choose, calls)}.values()]
    for inplace in (False, True):
        if program := zero_copy_program(name, ranks, inplace=inplace):
            found.append(program.compile(storage="peer"))
    for schedule, root in product(found, range(ranks)):
        prove(renamed(schedule, root))
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
