"""What was done once for each pair of things is done once for each: work is counted, and results are the same as by a
straightforward definition."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import TextIOWrapper
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from hocket import Custom, Program, Schedule, chunk, errors
from hocket.algorithms import ring
from hocket.errors import Site
from hocket.formats.msccl_document import _Lines
from hocket.ir import schedule as msccl_ir
from hocket.ir.chunk_dag import Span, shares_chunk
from hocket.ir.order import in_order
from hocket.ir.schedule import Step, _wrong_overlap


def copies(n: int) -> Program:
    """One chunk goes to n places, beside a sum."""
    with Program(Custom(1, inputs=2, outputs=n + 1, post=lambda _, i: {(0, 0), (0, i // n)})) as p:
        c = chunk(0, "in", 0).copy(0, "sc", 0)
        for i in range(n):
            c.copy(0, "out", i)
        chunk(0, "in", 0).copy(0, "out", n).reduce(chunk(0, "in", 1))
    return p


def is_linear(work: Callable[[int], int]) -> bool:
    """Whether twice as much takes about twice the work."""
    return work(200) <= 2.2 * work(100)


# Overlap in a step --------------------------------------------------------------------------------------------


def defined(step: Step) -> str | None:
    """What is wrong with its spans, of which there is no message."""
    for i, target in enumerate(step.dsts):
        for other in step.dsts[:i]:
            if set(target.indices()) & set(other.indices()):  # type: ignore[union-attr]
                return f"a step writes {target} and {other}, which overlap"
    for source in step.srcs:
        for target in step.dsts:
            if source != target and set(source.indices()) & set(target.indices()):  # type: ignore[union-attr]
                return f"a step reads {source} and writes {target}, which overlap"
    return None


spans = st.builds(Span, st.just(0), st.just("sc"), st.integers(0, 20), st.just(3), st.integers(1, 4))
operands = st.lists(spans, min_size=1, max_size=4).map(tuple)


@given(operands, operands)
def test_an_overlap_is_found_as_it_is_defined(srcs: tuple[Span, ...], dsts: tuple[Span, ...]) -> None:
    step = Step(srcs, dsts)
    assert _wrong_overlap(step, False) == defined(step)


def test_not_every_two_places_of_a_step_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = Mock(side_effect=shares_chunk)
    monkeypatch.setattr(msccl_ir, "shares_chunk", compared)
    schedule = copies(100).compile()
    assert max(len(step.dsts) for *_, step in schedule.steps()) == 100
    assert compared.call_count < 100


# Passes -------------------------------------------------------------------------------------------------------


class Handed(tuple[Step, ...]):
    """Counts the steps that it hands out."""

    count = 0

    def __iter__(self) -> Iterator[Step]:
        Handed.count += len(self)
        return super().__iter__()

    def __getitem__(self, key: Any) -> Any:
        Handed.count += len(range(len(self))[key]) if isinstance(key, slice) else 1
        return super().__getitem__(key)


def pings(n: int) -> Schedule:
    """A value goes to and fro: each thread block waits for each message."""
    with Program(Custom(2, inputs=1, outputs=1, post=lambda *_: {(0, 0)})) as p:
        c = chunk(0, "in", 0)
        for i in range(n):
            c = c.copy(1 - i % 2, "sc", 0)
        c.copy(0, "out", 0)
        c.copy(1, "out", 0)
    return p.compile()


def test_a_thread_block_goes_on_where_it_waited() -> None:
    def work(n: int) -> int:
        made = pings(n)
        ranks = [
            replace(rank, thread_blocks=tuple(structs.replace(b, steps=Handed(b.steps)) for b in rank.thread_blocks))
            for rank in made.ranks
        ]
        Handed.count = 0
        assert len(list(in_order(replace(made, ranks=tuple(ranks))))) == sum(1 for _ in made.steps())
        return Handed.count

    assert is_linear(work)


# Locations ----------------------------------------------------------------------------------------------------


def sites(code: CodeType) -> list[tuple[int, int, int | None]]:
    found = [Site(code, 2 * i).resolve() for i, _ in enumerate(code.co_positions())]
    return [(at.line, at.column, at.end_column) for at in found]


def test_positions_of_code_are_read_once_and_go_with_it() -> None:
    code, other = (compile(text, "<code>", "exec") for text in ("a(); b()", "a();    b()"))
    assert sites(code)[-3:] != sites(other)[-3:]
    known = {id(code), id(other)}
    assert known <= errors._POSITIONS.keys()
    assert errors._positions(code) is errors._positions(code)
    del code, other
    gc.collect()
    assert not known & errors._POSITIONS.keys()


TEXT = "one\n\nthree, \xe9\r\nfour\rfive\n" + "x" * 70000 + "\nlast"


@given(st.lists(st.integers(1, 9)), st.booleans())
def test_lines_of_a_file_are_given_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, asked: list[int], end: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "lines.txt"
    text = TEXT + "\n" * end
    path.write_text(text, newline="")
    for source, lines in ((text, text.split("\n")), (path, path.read_text().split("\n"))):
        read = _Lines(source)
        expected = dict(enumerate((line[: 1 << 16] for line in lines), 1))
        assert [read(number) for number in asked] == [expected.get(number, "") for number in asked]


@pytest.mark.parametrize("in_file", [True, False])
def test_lines_in_order_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_file: bool) -> None:
    steps = 0
    really = Path.open

    @contextmanager
    def opened(path: Path, *args: Any, **options: Any) -> Iterator[TextIOWrapper]:
        nonlocal steps
        with really(path, *args, **options) as file:
            counted = Mock(wraps=file)
            yield counted
            steps += counted.readline.call_count

    class Text(str):
        def find(self, *args: Any) -> int:
            nonlocal steps
            steps += 1
            return super().find(*args)

    def work(n: int) -> int:
        nonlocal steps
        text = "line\n" * n
        path.write_text(text)
        read = _Lines(path if in_file else Text(text))
        steps = 0
        with monkeypatch.context() as patched:
            patched.setattr(Path, "open", opened)
            assert {read(number) for number in range(1, n + 1)} == {"line"}
        return steps

    path = tmp_path / "lines.txt"
    assert work(100) > 90
    assert is_linear(work)


# A trace ------------------------------------------------------------------------------------------------------


def test_the_messages_of_a_thread_block_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = pytest.importorskip("hocket.runtime.trace", exc_type=ImportError)
    schedule = ring.all_reduce(8).compile()
    part = schedule.ranks[3]
    looked_at = Mock(side_effect=trace._connections)
    monkeypatch.setattr(trace, "_connections", looked_at)
    known = trace.Trace(Path(), 0, 0, 3, 8, (0, 0), None, {0: (schedule, part)})
    blocks = [(b, s) for b, block in enumerate(part.thread_blocks) for s, _ in enumerate(block.steps)]
    events = [SimpleNamespace(call=0, block=b, step=s, begin=0, end=1, tile=0, bytes=0) for b, s in blocks]
    arrows = sum('"cat":"message"' in text for text in known._steps(0, events, {0: SimpleNamespace(plan=0, rounds=0)}))
    assert arrows == sum(
        len(trace._connections(block.steps[s])) for block in part.thread_blocks for s in range(len(block.steps))
    )
    assert looked_at.call_count == 2 * len(blocks)  # once by the trace, once by this test
    for b, block in enumerate(part.thread_blocks):
        for s, ends in enumerate(trace._ends(part, b)):
            for end in ends:
                connection = end.receives, end.peer, end.channel
                users = [i for i, step in enumerate(block.steps) if connection in trace._connections(step)]
                assert (end.number, end.messages) == (users.index(s), len(users))
