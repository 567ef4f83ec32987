"""The language at its edges: what it takes, what it refuses, and that programs do not mix."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hocket import AllGather, AllReduce, AllToAll, Broadcast, Program, Ref, chunk, parallelize
from hocket.algorithms import ring
from hocket.errors import (
    CountMismatch,
    HocketError,
    InvalidArgument,
    OutOfRange,
    OutsideProgram,
    Overlap,
    PostconditionFailed,
    StaleChunk,
    UninitializedChunk,
)
from hocket.ir.chunk_dag import Kind, Span
from hocket.ir.text import print_chunk_dag
from tests.reference import check


def operations(program: Program) -> list[str]:
    """The operations of a program, without their numbers and dependencies."""
    lines = print_chunk_dag(program.chunk_dag, locations=False).splitlines()[2 + program.collective.size :]
    return [line.partition(": ")[2].partition("  ")[0] for line in lines]


# Arguments ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [np.int64, np.int8, np.uint16, int])
def test_any_whole_number_is_a_number(number: Callable[[int], int]) -> None:
    with Program(AllReduce((2, 2), chunks=4)) as p:
        c = chunk(number(1), "in", number(2), number(2))
        c.copy(number(3), "out", number(0), number(2), ch=number(1))
        with parallelize(number(2)):
            chunk((number(0), number(1)), "in", (number(1), number(1))).copy(number(0), "sc", number(5))
    copy, parallel = p.chunk_dag.nodes[4:]
    assert (copy.src, copy.dst) == (Span(1, "in", 2, 2), Span(3, "out", 0, 2))
    assert copy.hints.channel == 1
    assert type(copy.dst.rank) is type(copy.dst.index) is type(copy.hints.channel) is int
    assert (parallel.src, parallel.dst) == (Span(1, "in", 3), Span(0, "sc", 5))
    assert parallel.hints.instances == 2
    assert p.chunk_dag.scratch == (6, 0, 0, 0)


@pytest.mark.parametrize(
    "bad", [True, False, 1.0, "1", None, [1], np.True_, np.float64(1), np.array([1, 2]), 1j, object()]
)
def test_nothing_else_is_a_number(bad: object) -> None:
    wrong: list[Callable[[], object]] = [
        lambda: chunk(bad, "in", 0),  # type: ignore[arg-type]
        lambda: chunk(0, "in", bad),  # type: ignore[arg-type]
        lambda: chunk(0, "in", 0, bad),  # type: ignore[arg-type]
        lambda: chunk((0, bad), "in", 0),  # type: ignore[arg-type]
        lambda: chunk(0, "in", (bad, 0)),  # type: ignore[arg-type]
        lambda: chunk(0, "in", 0).copy(bad, "out", 0),  # type: ignore[arg-type]
        lambda: parallelize(bad),  # type: ignore[arg-type]
    ]
    if bad is not None:  # None is how an optional argument is left out
        wrong += [
            lambda: chunk(0, "in", 0).copy(0, "out", bad),  # type: ignore[arg-type]
            lambda: chunk(0, "in", 0).copy(0, "out", 0, bad),  # type: ignore[arg-type]
            lambda: chunk(0, "in", 0).copy(0, "out", 0, ch=bad),  # type: ignore[arg-type]
            lambda: chunk(0, "in", 0).reduce(chunk(1, "in", 0), ch=bad),  # type: ignore[arg-type]
        ]
    with Program(AllReduce((2, 2), chunks=4)) as p:
        for call in wrong:
            with pytest.raises(InvalidArgument):
                call()
    assert operations(p) == []


@pytest.mark.parametrize("bad", ["input", "i", "", "IN", None, 0, ("in",), ["in"], np.array(["in", "out"])])
def test_there_are_three_buffers(bad: object) -> None:
    with Program(AllReduce(2)):
        with pytest.raises(InvalidArgument, match="buffer"):
            chunk(0, bad, 0)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="buffer"):
            chunk(0, "in", 0).copy(0, bad, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("position", [(), (1,), (0, 1, 2), (0, 0, 0, 0)])
def test_a_tuple_has_as_many_numbers_as_the_shape(position: tuple[int, ...]) -> None:
    with Program(AllReduce((2, 3), chunks=6)):
        for call in (lambda: chunk(position, "in", 0), lambda: chunk(0, "in", position)):
            with pytest.raises(InvalidArgument, match="numbers"):
                call()


@pytest.mark.parametrize("position", [(2, 0), (0, 3), (-1, 0), (0, -1), (1 << 70, 0)])
def test_each_number_of_a_tuple_has_its_range(position: tuple[int, int]) -> None:
    """(0, 3) is not (1, 0), though both would be number 3 of a 2 x 3 shape."""
    with Program(AllReduce((2, 3), chunks=6)):
        for call in (lambda: chunk(position, "in", 0), lambda: chunk(0, "in", position)):
            with pytest.raises(OutOfRange):
                call()


def test_tuples_are_flattened_row_major() -> None:
    with Program(AllToAll((2, 3, 4))) as p:
        chunk((1, 2, 3), "in", (1, 0, 2)).copy((0, 2, 1), "out", (0, 1, 0))
    (node,) = [n for n in p.chunk_dag.nodes if n.kind is Kind.COPY]
    assert (node.src, node.dst) == (Span(23, "in", 14), Span(9, "out", 4))


def test_a_tuple_of_one_is_a_number() -> None:
    with Program(AllReduce(3, chunks=3)) as p:
        chunk((2,), "in", (1,)).copy((0,), "out", (2,))
    assert operations(p) == ["copy 2.in[1] -> 0.out[2]"]


def test_count_and_sz_are_one_argument() -> None:
    with Program(AllReduce(2, chunks=4)) as p:
        assert chunk(0, "in", 0, 3).span == chunk(0, "in", 0, count=3).span == chunk(0, "in", 0, sz=3).span
        c = chunk(0, "in", 0, 3)
        c.copy(1, "sc", 0, 3)
        c.copy(1, "sc", 3, count=3)
        c.copy(1, "sc", 6, sz=3)
        for wrong in ({"count": 2}, {"sz": 2}, {"count": 3, "sz": 2}, {"count": 2, "sz": 3}):
            with pytest.raises(CountMismatch):
                c.copy(1, "sc", 9, **wrong)  # type: ignore[arg-type]
    assert p.chunk_dag.scratch == (0, 9)


def test_without_an_index_the_same_one_is_meant() -> None:
    with Program(AllReduce(2, chunks=4)) as p:
        chunk(0, "in", 2, 2).copy(1, "out").copy(1, "sc").copy(0, "out")
    assert operations(p) == [
        "copy 0.in[2:+2] -> 1.out[2:+2]",
        "copy 1.out[2:+2] -> 1.sc[2:+2]",
        "copy 1.sc[2:+2] -> 0.out[2:+2]",
    ]


def test_a_far_scratch_index_is_one_chunk_of_many() -> None:
    with Program(AllReduce(1)) as p:
        chunk(0, "in", 0).copy(0, "sc", 100_000).copy(0, "out", 0)
    schedule = p.compile(opcodes=True)
    assert schedule.ranks[0].scratch == 100_001
    check(schedule, 3)


def test_huge_positions_are_refused_and_cost_nothing() -> None:
    with Program(AllReduce(2)):
        c = chunk(0, "in", 0)
        for index in (1 << 24, 1 << 40, 1 << 100):
            with pytest.raises(OutOfRange):
                c.copy(1, "sc", index)
        with pytest.raises(OutOfRange):
            chunk(0, "sc", 0, 1 << 60)
        with pytest.raises(UninitializedChunk) as caught:
            chunk(0, "sc", (1 << 24) - 1)
        assert caught.value.index == (1 << 24) - 1


# References ---------------------------------------------------------------------------------------------------


def test_operations_return_references_to_what_they_made() -> None:
    with Program(AllReduce(2, chunks=2)) as p:
        c = chunk(0, "in", 0, 2).copy(1, "out", 0)
        assert repr(c) == "<chunks rank 1 out[0:+2]>"
        total = c.reduce(chunk(1, "in", 0, 2))
        assert (total.span, total.physical) == (c.span, c.physical)
        assert total is not c
        assert isinstance(total, Ref)
    assert operations(p) == ["copy 0.in[0:+2] -> 1.out[0:+2]", "reduce 1.in[0:+2] -> 1.out[0:+2]"]


def test_reading_does_not_make_a_reference_stale() -> None:
    with Program(AllReduce(3)) as p:
        c = chunk(0, "in", 0)
        for rank in range(3):
            c.copy(rank, "out", 0)
            c.copy(rank, "sc", 0)
    assert len(operations(p)) == 6


def test_overwriting_one_of_its_chunks_makes_a_reference_stale() -> None:
    for overwritten in range(3):
        with Program(AllReduce(2, chunks=4, inplace=True)):
            c = chunk(0, "in", 0, 3)
            chunk(1, "in", 3).copy(0, "in", overwritten)
            with pytest.raises(StaleChunk) as caught:
                c.copy(1, "sc", 0)
            assert caught.value.index == overwritten
    with Program(AllReduce(2, chunks=4, inplace=True)):
        c = chunk(0, "in", 0, 3)
        chunk(1, "in", 3).copy(0, "in", 3)
        c.copy(1, "sc", 0)


def test_writing_the_same_value_again_makes_a_reference_stale_too() -> None:
    with Program(AllReduce(2, inplace=True)):
        c = chunk(0, "in", 0)
        c.copy(1, "sc", 0).copy(0, "in", 0)
        with pytest.raises(StaleChunk):
            c.copy(1, "sc", 1)


def test_storage_is_a_directive() -> None:
    with Program(AllReduce(2, chunks=2, inplace=True)) as p:
        chunk(1, "in", 0).reduce(chunk(0, "in", 0), storage="pull").copy(0, "in", 0, storage="fifo")
        with pytest.raises(InvalidArgument, match="there is no storage 'peer'"):
            chunk(0, "in", 1).copy(1, "sc", 0, storage="peer")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match=r"there is no storage \['pull'\]"):
            chunk(0, "in", 1).copy(1, "sc", 0, storage=["pull"])  # type: ignore[arg-type]
    assert [node.hints.storage for node in p.chunk_dag.nodes[2:]] == ["pull", "fifo"]
    assert "  storage=pull" in print_chunk_dag(p.chunk_dag)


def test_storage_of_a_compilation() -> None:
    with Program(AllReduce(1, inplace=True)) as p:
        pass
    for storage in ("fifo", "peer"):
        assert not p.compile(storage=storage).in_place()
    with pytest.raises(InvalidArgument, match="there is no storage 'pull'"):
        p.compile(storage="pull")
    with pytest.raises(InvalidArgument, match="exclude each other"):
        p.compile(storage="peer", opcodes=True)
    with pytest.raises(InvalidArgument, match="opcodes must be True or False, not 'no'"):
        p.compile(opcodes="no")  # type: ignore[arg-type]


def test_a_refused_operation_leaves_no_trace() -> None:
    with Program(AllReduce(2, chunks=2, inplace=True)) as p:
        c = chunk(0, "in", 0)
        for wrong in (
            lambda: c.copy(0, "in", 0),
            lambda: c.copy(2, "in", 0),
            lambda: c.copy(1, "in", 0, ch=-1),
            lambda: c.reduce(c),
            lambda: c.reduce(chunk(0, "in", 0, 2)),
            lambda: c.copy(1, "sc", 5, 2),
        ):
            with pytest.raises(HocketError):
                wrong()
        c.copy(1, "in", 0)
    assert operations(p) == ["copy 0.in[0] -> 1.in[0]"]
    assert p.chunk_dag.scratch == (0, 0)


def test_overlap_is_of_chunks_and_not_of_names() -> None:
    with Program(AllGather(3, inplace=True)):
        with pytest.raises(Overlap):
            chunk(1, "in", 0).copy(1, "out", 1)
        chunk(1, "in", 0).copy(1, "out", 0)
        with pytest.raises(Overlap):
            chunk(1, "in", 0).reduce(chunk(1, "out", 1))
    with Program(AllGather(3)):
        chunk(1, "in", 0).copy(1, "out", 1)


@pytest.mark.parametrize("other", [None, 3, "in", (0, "in", 0)])
def test_only_references_are_reduced(other: object) -> None:
    with Program(AllReduce(2)), pytest.raises(InvalidArgument, match="reference"):
        chunk(0, "in", 0).reduce(other)  # type: ignore[arg-type]


# parallelize --------------------------------------------------------------------------------------------------


def test_parallel_fragments_nest_and_end() -> None:
    with Program(AllReduce(1, chunks=1)) as p:
        c = chunk(0, "in", 0)
        with parallelize(2):
            c.copy(0, "sc", 0)
            with parallelize(3):
                c.copy(0, "sc", 1)
            c.copy(0, "sc", 2)
        c.copy(0, "out", 0)
    assert [node.hints.instances for _, node in p.chunk_dag.operations()] == [2, 6, 2, 1]
    schedule = p.compile()
    assert schedule.collective.chunks == 6
    check(schedule, 100)


def test_a_fragment_ends_when_an_exception_leaves_it() -> None:
    with Program(AllReduce(1)) as p:
        with pytest.raises(KeyError), parallelize(4):
            raise KeyError
        chunk(0, "in", 0).copy(0, "out", 0)
    assert [node.hints.instances for _, node in p.chunk_dag.operations()] == [1]


@pytest.mark.parametrize("n", [0, -1])
def test_there_is_at_least_one_instance(n: int) -> None:
    with Program(AllReduce(1)), pytest.raises(OutOfRange):
        parallelize(n)


def test_parallelize_belongs_to_its_program() -> None:
    with pytest.raises(OutsideProgram):
        parallelize(2)
    with Program(AllReduce(1)) as outer, parallelize(2):
        with Program(AllReduce(1)) as inner:
            chunk(0, "in", 0).copy(0, "out", 0)
        chunk(0, "in", 0).copy(0, "out", 0)
    assert [node.hints.instances for _, node in inner.chunk_dag.operations()] == [1]
    assert [node.hints.instances for _, node in outer.chunk_dag.operations()] == [2]


# Programs -----------------------------------------------------------------------------------------------------


def test_threads_do_not_mix() -> None:
    """All trace at once, each a step at a time, in step with the others."""
    threads = 8
    barrier = threading.Barrier(threads)

    def trace(ranks: int) -> Program:
        with Program(AllReduce(ranks, chunks=ranks, inplace=True)) as p:
            barrier.wait()
            for i in range(2):
                c = chunk((i + 1) % ranks, "in", i)
                barrier.wait()
                for step in range(1, ranks):
                    c = chunk((i + step + 1) % ranks, "in", i).reduce(c)
                barrier.wait()
                for step in range(1, ranks):
                    c = c.copy((i + step) % ranks, "in", i)
        return p

    with ThreadPoolExecutor(threads) as pool:
        programs = list(pool.map(trace, range(2, 2 + threads)))
    for ranks, program in enumerate(programs, 2):
        assert program.collective.size == ranks
        assert len(operations(program)) == 2 * 2 * (ranks - 1)
        assert program.chunk_dag == trace_alone(ranks).chunk_dag


def trace_alone(ranks: int) -> Program:
    with Program(AllReduce(ranks, chunks=ranks, inplace=True)) as p:
        for i in range(2):
            c = chunk((i + 1) % ranks, "in", i)
            for step in range(1, ranks):
                c = chunk((i + step + 1) % ranks, "in", i).reduce(c)
            for step in range(1, ranks):
                c = c.copy((i + step) % ranks, "in", i)
    return p


def test_a_thread_does_not_trace_into_the_program_of_another() -> None:
    refused: list[str] = []

    def meddle(c: Ref) -> None:
        for call in (lambda: chunk(0, "in", 0), lambda: c.copy(1, "out", 0)):
            try:
                call()
            except OutsideProgram as error:
                refused.append(error.code)

    with Program(AllReduce(2)) as p:
        thread = threading.Thread(target=meddle, args=(chunk(0, "in", 0),))
        thread.start()
        thread.join()
    assert refused == ["outside-program"] * 2
    assert operations(p) == []


def test_tasks_do_not_mix() -> None:
    async def trace(ranks: int) -> Program:
        with Program(Broadcast(ranks)) as p:
            for rank in range(ranks):
                await asyncio.sleep(0)
                chunk(0, "in", 0).copy(rank, "out", 0)
        return p

    async def all_of_them() -> list[Program]:
        return await asyncio.gather(*(trace(n) for n in range(1, 6)))

    assert [len(operations(p)) for p in asyncio.run(all_of_them())] == [1, 2, 3, 4, 5]


def test_nested_programs_are_two_programs() -> None:
    with Program(AllReduce(1), name="outer") as outer:
        c = chunk(0, "in", 0)
        with Program(Broadcast(2), name="inner") as inner:
            chunk(0, "in", 0).copy(0, "out", 0).copy(1, "out", 0)
        inner.compile()
        ring.all_reduce(3).compile()
        c.copy(0, "out", 0)
    assert (len(operations(outer)), len(operations(inner))) == (1, 2)
    check(outer.compile(), 3)


def test_an_exception_leaves_the_body_and_ends_the_program() -> None:
    p = Program(AllReduce(2))

    def body() -> None:
        with p:
            chunk(0, "in", 0).copy(0, "out", 0)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        body()
    with pytest.raises(OutsideProgram):
        chunk(0, "in", 0)
    with pytest.raises(PostconditionFailed):
        p.compile()
    with Program(AllReduce(1)) as q:
        chunk(0, "in", 0).copy(0, "out", 0)
    q.compile()


def test_a_program_is_traced_once() -> None:
    p = Program(AllReduce(1, inplace=True))
    with p:
        with pytest.raises(OutsideProgram), p:
            pass
        with pytest.raises(OutsideProgram):
            p.compile()
    with pytest.raises(OutsideProgram), p:
        pass
    p.compile()


def test_names() -> None:
    assert Program(AllReduce(2)).name == "allreduce"
    assert Program(AllReduce(2), name="mine").name == "mine"
    assert Program(AllReduce(2), name="").name == ""
    for name in (5, b"mine", ["mine"]):
        with pytest.raises(InvalidArgument, match="name"):
            Program(AllReduce(2), name=name)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [0, -1, 1.5, "2", True])
def test_numbers_of_the_compiler(bad: object) -> None:
    p = ring.all_reduce(2)
    with pytest.raises(InvalidArgument, match="instances"):
        Program(AllReduce(2), instances=bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="instances"):
        p.compile(instances=bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="slots"):
        p.compile(slots=bad)  # type: ignore[arg-type]


def test_options_of_compile_override_those_of_the_program() -> None:
    p = ring.all_reduce(2, instances=3)
    assert p.compile().collective.chunks == 6
    assert p.compile(instances=1).collective.chunks == 2
    assert p.compile(instances=np.int64(2)).collective.chunks == 4  # type: ignore[arg-type]
    assert p.compile(protocol="simple").protocol == "simple"
    assert p.compile().protocol == "auto"
    with pytest.raises(InvalidArgument, match="protocol"):
        p.compile(protocol="fast")


def test_the_chunk_dag_may_be_looked_at_while_it_grows() -> None:
    with Program(AllReduce(1)) as p:
        empty = p.chunk_dag
        chunk(0, "in", 0).copy(0, "out", 0)
        assert len(p.chunk_dag.nodes) == 2
    assert len(empty.nodes) == 1


def test_true_and_false_dependencies() -> None:
    with Program(AllReduce(2, chunks=2, inplace=True)) as p:
        a = chunk(0, "in", 0)  # node 0 is the input of rank 0, node 1 that of rank 1
        a.copy(1, "sc", 0)  # 2: reads node 0
        chunk(1, "in", 0).reduce(chunk(1, "sc", 0))  # 3: reads 1 and 2
        chunk(1, "in", 0).copy(0, "in", 0)  # 4: reads 3, overwrites what 2 read
        chunk(1, "in", 1).copy(1, "sc", 0)  # 5: reads 1, overwrites 2, which 3 read
        chunk(0, "in", 0, 2).copy(1, "sc", 1)  # 6: reads 0 and 4
    nodes = p.chunk_dag.nodes
    assert [(n.true, n.false) for n in nodes[2:]] == [
        ((0,), ()),
        ((1, 2), ()),
        ((3,), (0, 2)),
        ((1,), (2, 3)),
        ((0, 4), ()),
    ]


def test_every_operation_knows_its_line() -> None:
    with Program(AllReduce(2)) as p:
        here = inspect.currentframe()
        assert here is not None
        first = here.f_lineno + 1
        chunk(0, "in", 0).copy(0, "out", 0)
        (
            chunk(0, "out", 0)
            .reduce(chunk(1, "in", 0))
            .copy(1, "out", 0)
        )  # fmt: skip
    found = [node.where.resolve() for _, node in p.chunk_dag.operations() if node.where is not None]
    assert [at.file for at in found] == [__file__] * 3
    assert found[0].line == first
    assert first < found[1].line <= found[2].line <= first + 5
