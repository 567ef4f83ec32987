"""Blocks of lengths of their own, ``counts=``: the cut, what may run on it, calls on processes, and wrong ones."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import hocket
from hocket import (
    AllGather,
    AllReduce,
    AllToAll,
    Communicator,
    Custom,
    Gather,
    HocketError,
    Program,
    ReduceScatter,
    Scatter,
    Schedule,
    _native,
    chunk,
)
from hocket.algorithms import direct
from hocket.algorithms.catalogue import CATALOGUE
from hocket.errors import CallMismatch, InvalidArgument, PeerRefused, UnevenCounts, WrongType
from hocket.ir.geometry import bounds, check_units, output_units
from hocket.runtime.counts import transfers
from hocket.semantics import reference
from hocket.tuning import NAMED, default_program
from tests.runtime.cases import PAIRS
from tests.runtime.counted import COUNTED, ROOTED, Case, call, disagree

OPAQUE = ("M8[s]", "S5", "V7", "i1,f8,S3")
"""Elements that can only be moved, cut as bytes."""

# ---------------------------------------------------------------------------------------------------------------
# The cut


@given(
    lengths=st.lists(st.integers(0, 700), min_size=1, max_size=4),
    more=st.integers(0, 300),
    itemsize=st.sampled_from((1, 4, 8)),
    chunks=st.integers(1, 9),
    tile=st.sampled_from((64, 128, 4096)),
)
def test_native_code_cuts_units_as_the_reference_does(
    lengths: list[int], more: int, itemsize: int, chunks: int, tile: int
) -> None:
    n = max(lengths) + more  # the longest may be on another rank
    collective = AllReduce(1, chunks)
    table = [0, *np.cumsum(lengths) * itemsize]
    tiles = _native.cut(n, itemsize, chunks, 1, 0, tile).tiles
    end = 0
    for index in range(len(lengths) * chunks):
        unit, position = divmod(index, chunks)
        cut = bounds(collective, n, itemsize, index, lengths)
        at = cut.start * itemsize
        for t in range(tiles):
            piece = _native.piece(n, itemsize, chunks, tile, unit, position, 0, t, table)
            skipped = _native.piece(n, itemsize, chunks, tile, 0, 0, index, t, table)
            assert (skipped.offset, skipped.bytes) == (piece.offset, piece.bytes)
            assert piece.offset == at
            assert piece.bytes <= tile
            at += piece.bytes
        assert at == cut.stop * itemsize
        assert cut.start == end
        end = cut.stop
        if position == chunks - 1:
            assert end == sum(lengths[: unit + 1])


@given(n=st.integers(0, 700), units=st.integers(1, 3), chunks=st.integers(1, 9))
def test_equal_lengths_are_cut_as_one_number(n: int, units: int, chunks: int) -> None:
    collective = AllReduce(1, chunks)
    for index in range(units * chunks):
        assert bounds(collective, n, 4, index, [n] * units) == bounds(collective, n, 4, index)


# ---------------------------------------------------------------------------------------------------------------
# Which schedules may run


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8])
def test_default_programs_keep_every_value_in_units_of_its_own(ranks: int) -> None:
    for name in NAMED:
        for root in range(ranks):
            for small in (False, True):
                check_units(default_program(name, ranks, root, small=small).compile())


def through_the_place_of_another() -> Program:
    """An AllGather where block 0 comes to rank 1 by way of block 1's place on rank 0."""
    with Program(AllGather(2), name="detour") as p:
        chunk(0, "in", 0).copy(0, "out", 0).copy(0, "out", 1).copy(1, "out", 0)
        chunk(1, "in", 0).copy(1, "out", 1).copy(0, "out", 1)
    return p


def one_scratch_chunk() -> Program:
    """One scratch chunk for two blocks, one after the other."""
    with Program(AllGather(2), name="one_scratch_chunk") as p:
        for r in range(2):
            chunk(r, "in", 0).copy(r, "out", r)
            chunk(r, "in", 0).copy(1 - r, "sc", 0)
            chunk(1 - r, "sc", 0).copy(1 - r, "out", r)
        chunk(0, "out", 0).copy(0, "sc", 0)
    return p


def longer_through_shorter() -> Program:
    """The first chunk of a block goes through the place of the second, which may be shorter."""
    with Program(AllGather(1, chunks=2), name="narrow") as p:
        chunk(0, "in", 0).copy(0, "out", 1).copy(0, "out", 0)
        chunk(0, "in", 1).copy(0, "out", 1)
    return p


@pytest.mark.parametrize(
    ("program", "first", "second", "line"),
    [
        (through_the_place_of_another, "rank 0 in[0]", "rank 1 in[0]", '.copy(0, "out", 1)'),
        (one_scratch_chunk, "rank 0 in[0]", "rank 1 in[0]", 'chunk(0, "out", 0).copy(0, "sc", 0)'),
        (longer_through_shorter, "chunk 0 of a unit", "chunk 1", '.copy(0, "out", 1)'),
    ],
)
def test_programs_that_could_cut_a_value_are_refused(
    program: Callable[[], Program], first: str, second: str, line: str
) -> None:
    schedule = program().compile(opcodes=True)
    with pytest.raises(UnevenCounts) as error:
        check_units(schedule)
    text = str(error.value)
    assert text.startswith(
        f"error[uneven-counts]: {schedule.name} cannot run with counts: {first} and {second} may differ in length, and "
        "one goes where the other lies\n"
    )
    assert line in text
    assert "^ moved here\n" in text
    with pytest.raises(UnevenCounts):
        reference(schedule, [np.zeros(r + 1) for r in range(schedule.collective.size)], units=[[1], [2]])


def test_units_of_which_nothing_is_promised_are_as_long_as_any() -> None:
    collective = Custom(2, inputs=(1, 2), outputs=(1, 2), post=lambda r, i: {(0, 0)} if r and i else None)
    assert output_units(collective, [[3], [5, 0]]) == [[5], [5, 3]]
    with pytest.raises(InvalidArgument, match=r"unit 0 of the input of rank 1 has 2 elements, others .* have 1"):
        output_units(AllReduce(2), [[1], [2]])


PROGRAMS = [
    entry.factory(**parameters)
    for entry in CATALOGUE
    if entry.collective in (AllGather, ReduceScatter, AllToAll, Gather, Scatter)
    for ranks in (3, 4, 8)
    for parameters in entry.takes.shapes(ranks)[:2]
]
ROTATES = "bruck_all_to_all"
"""The one program that moves blocks through each other's places."""
SCHEDULES = [
    program.compile(instances=1 + number % 3) for number, program in enumerate(PROGRAMS) if program.name != ROTATES
]


def test_of_the_library_only_what_rotates_blocks_is_refused() -> None:
    assert len(SCHEDULES) > 40
    for schedule in SCHEDULES:
        check_units(schedule)
    refused = [program.compile() for program in PROGRAMS if program.name == ROTATES]
    assert len(refused) == 3
    for schedule in refused:
        with pytest.raises(UnevenCounts):
            check_units(schedule)


@given(schedule=st.sampled_from(SCHEDULES), draw=st.data(), seed=st.integers(0, 1000))
def test_the_reference_on_uneven_units(schedule: Schedule, draw: st.DataObject, seed: int) -> None:
    collective = schedule.collective
    ranks = collective.size
    lengths = st.lists(st.integers(0, 200), min_size=ranks, max_size=ranks)
    match collective.name:
        case "alltoall":
            units = [draw.draw(lengths) for _ in range(ranks)]
        case "allgather" | "gather":
            units = [[n] for n in draw.draw(lengths)]
        case _:
            counts = draw.draw(lengths)
            units = [counts if collective.input_blocks(r) else [] for r in range(ranks)]
    inputs = [np.arange(sum(row)) * 7 + 1000003 * r for r, row in enumerate(units)]
    blocks = [np.split(x, np.cumsum(row)[:-1]) for x, row in zip(inputs, units, strict=True)]
    outputs = reference(schedule, inputs, units=units, seed=seed)
    for rank, out in enumerate(outputs):
        terms = [
            sum(blocks[r][i // collective.chunks] for i, mask in total for r in range(ranks) if mask >> r & 1)
            for index in range(0, collective.outputs(rank), collective.chunks)
            if (total := collective.required(rank, index)) is not None
        ]
        np.testing.assert_array_equal(out, np.concatenate([[], *terms]))


# ---------------------------------------------------------------------------------------------------------------
# Calls on processes, which live as long as this module's tests


class Job:
    """Ranks that make the calls they are told to. They are started when there is none, and end when one fails."""

    def __init__(self, ranks: int, folder: Path) -> None:
        self._ranks = ranks
        self._address = str(folder / f"{ranks}.socket")
        self._lines: list[Connection] = []

    def run(self, case: Case) -> None:
        if not self._lines:
            with Listener(self._address) as listener:
                self._spawned = threading.Thread(target=hocket.spawn, args=(serve, self._ranks, (self._address,)))
                self._spawned.start()
                self._lines = [listener.accept() for _ in range(self._ranks)]
        for line in self._lines:
            line.send(case)
        failed = [text for line in self._lines if (text := line.recv()) is not None]
        if failed:
            self.end()
        assert not failed, failed[0]

    def end(self) -> None:
        for line in self._lines:
            line.send(None)
            line.close()
        if self._lines:
            self._spawned.join()
            self._lines = []


def serve(_: Communicator, address: str) -> None:
    with hocket.init(timeout=20) as comm, Client(address) as line:
        while (case := line.recv()) is not None:
            try:
                (call if case.odd is None else disagree)(comm, case)
            except Exception:
                line.send(f"rank {comm.rank}, {case}\n{traceback.format_exc()}")
                comm.abort("saw something wrong")
            else:
                line.send(None)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Job]]:
    folder = tmp_path_factory.mktemp("jobs")
    found: dict[int, Job] = {}
    yield lambda ranks: found.setdefault(ranks, Job(ranks, folder))
    for job in found.values():
        job.end()


COUNT = st.one_of(st.integers(0, 3), st.integers(0, 40))


@st.composite
def cases(draw: st.DrawFn, ranks: int) -> Case:
    name = draw(st.sampled_from(COUNTED))
    if draw(st.integers(0, 5)):
        line = st.lists(COUNT, min_size=ranks, max_size=ranks).map(tuple)
    else:
        line = st.just((draw(COUNT),) * ranks)
    lines = ranks if name == "all_to_all" else 1
    counts = draw(st.lists(line, min_size=lines, max_size=lines))
    uncounted: list[int] = []
    if name == "all_to_all" and (uncounted := draw(st.lists(st.integers(0, ranks - 1), unique=True))):
        n, every = draw(COUNT), range(ranks)
        counts = [[n if {r, s} & {*uncounted} else counts[r][s] for s in every] for r in every]
    if name == "reduce_scatter":
        dtype, op = draw(st.sampled_from(PAIRS))
    else:
        dtype, op = draw(st.sampled_from((*OPAQUE, *dict(PAIRS)))), "sum"
    return Case(
        name,
        tuple(map(tuple, counts)),
        draw(st.sampled_from(((), (1,), (3,), (2, 5), (0,), (257,)))),
        dtype,
        op,
        draw(st.integers(0, ranks - 1)) if name in ROOTED else 0,
        draw(st.sampled_from(("own", "apart", "in place"))),
        draw(st.booleans()),
        uncounted=tuple(uncounted),
    )


@pytest.mark.parametrize("ranks", [1, 2, *(pytest.param(n, marks=pytest.mark.campaign) for n in (3, 4, 5))])
def test_against_the_reference_and_numpy(ranks: int, jobs: Callable[[int], Job]) -> None:
    @settings(max_examples=50, deadline=None)
    @given(case=cases(ranks))
    @example(case=Case("all_gather", ((0,) * ranks,), (3,), "int32", "sum", 0, "own", False))
    @example(case=Case("all_to_all", ((0,) * ranks,) * ranks, (3,), "int32", "sum", 0, "own", False))
    @example(case=Case("reduce_scatter", ((0,) * (ranks - 1) + (50_000,),), (3,), "float16", "avg", 0, "own", False))
    @example(case=Case("all_to_all", (tuple(range(0, 9000 * ranks, 9000)),) * ranks, (), "V7", "sum", 0, "own", False))
    @example(case=Case("scatter", ((70_001,) * ranks,), (), "float64", "sum", ranks - 1, "in place", False))
    def check(case: Case) -> None:
        jobs(ranks).run(case)

    check()


@pytest.mark.parametrize("ranks", [2, 4])
def test_disagreement(ranks: int, jobs: Callable[[int], Job]) -> None:
    @settings(max_examples=40, deadline=None)
    @given(
        case=cases(ranks),
        odd=st.integers(0, ranks - 1),
        place=st.integers(0, ranks - 1),
        more=st.one_of(st.integers(1, 3), st.integers(1, 10**5)),
        less=st.booleans(),
    )
    def check(case: Case, odd: int, place: int, more: int, less: bool) -> None:
        changes = [(place, more)]
        other = (place + 1) % ranks
        if less and (had := case.counts[odd if case.name == "all_to_all" else 0][other]):  # the same rows in all
            changes = [(place, had), (other, -had)]
        uncounted = tuple(r for r in case.uncounted if r != odd)
        case = replace(case, row=(3,), dtype="int32", op="sum", odd=odd, changes=tuple(changes), uncounted=uncounted)
        jobs(ranks).run(case)

    check()


def half_counted(comm: Communicator, n: int) -> None:
    """Ranks that give counts take another program than those that do not: of one thread, or not the user's own."""
    p, r = comm.size, comm.rank
    comm.use(direct.all_to_all(p).compile(instances=2), "1KB..")
    other = comm.dup()
    x = np.arange(p * n) + 1000 * r
    expected = np.concatenate([np.arange(n * r, n * r + n) + 1000 * s for s in range(p)])
    counts = None if r == 0 else ([n] * p, [n] * p)
    for _ in range(3):
        assert (comm.all_to_all(x, np.empty_like(x), counts=counts) == expected).all()
        handle = comm.all_to_all(x, np.empty_like(x), counts=counts, async_=True)
        if r == 0:
            other.barrier()  # the call goes on meanwhile, on this rank too
            assert (handle.wait() == expected).all()
        else:
            assert (handle.wait() == expected).all()
            other.barrier()


@pytest.mark.parametrize(("ranks", "threads", "n"), [(2, 2, 1 << 17), (2, 1, 1), (3, 1, 1000)])
def test_counts_that_some_leave_out(ranks: int, threads: int, n: int) -> None:
    hocket.spawn(half_counted, ranks, (n,), threads=threads)


def swap() -> Schedule:
    """An AllToAll of two ranks in place."""
    with Program(AllToAll(2, inplace=True), name="swap") as p:
        for r in range(2):
            chunk(r, "in", 1 - r).copy(1 - r, "sc", 0)
        for r in range(2):
            chunk(r, "sc", 0).copy(r, "in", 1 - r)
    return p.compile()


def half_counted_in_place(comm: Communicator, sizes: str) -> None:
    """The user's program works on other buffers than the one for counts: then the calls are right, or mismatch."""
    comm.use(swap(), sizes)
    n, r = 1000, comm.rank
    x = np.arange(2 * n) + 10_000 * r
    expected = np.concatenate([np.arange(n * r, n * r + n) + 10_000 * s for s in range(2)])
    counts = None if r == 0 else ([n] * 2, [n] * 2)
    out = np.full_like(x, 7)
    try:
        comm.all_to_all(x.copy(), out, counts=counts)
    except CallMismatch:
        assert sizes != "0.."
        assert (out == 7).all()
    else:
        assert (out == expected).all()
    try:
        found = comm.all_to_all(x.copy(), counts=counts)
    except CallMismatch:
        assert sizes != "0.."
    else:
        assert (found == expected).all()
    assert (comm.all_to_all(x.copy(), np.empty_like(x)) == expected).all()


@pytest.mark.parametrize("sizes", ["0..", "1KB.."])
def test_counts_that_some_leave_out_of_a_schedule_in_place(sizes: str) -> None:
    hocket.spawn(half_counted_in_place, 2, (sizes,))


# ---------------------------------------------------------------------------------------------------------------
# Wrong calls


def wrong(comm: Communicator) -> list[str]:
    p, r = comm.size, comm.rank
    other = (r + 1) % p
    counts, total = list(range(1, p + 1)), p * (p + 1) // 2
    x, whole = np.ones((counts[r], 3)), np.ones((total, 3))
    mine = np.ones((total, 3))
    ones = ([1] * p, [1] * p)
    huge = [0 if k == r else 1 << 60 for k in range(p)]
    each = f"the rows of each of {p} ranks"
    bad: list[tuple[type[HocketError], str, Callable[[], object]]] = [
        (InvalidArgument, f"{each}, not [1, 2]", lambda: comm.all_gather(x, counts=[1, 2])),
        (InvalidArgument, f"{each}, not [1, 2, -3]", lambda: comm.all_gather(x, counts=[1, 2, -3])),
        (InvalidArgument, f"{each}, not [1, 2, True]", lambda: comm.reduce_scatter(whole, counts=[1, 2, True])),
        (
            InvalidArgument,
            f"{each}, not [1, 2, 3.0]",
            lambda: comm.gather(x, counts=[1, 2, 3.0]),  # type: ignore[list-item]
        ),
        (InvalidArgument, f"{each}, not '123'", lambda: comm.scatter(whole, counts="123")),  # type: ignore[arg-type]
        (
            InvalidArgument,
            f"{each}, not {{1, 2, 3}}",
            lambda: comm.scatter(whole, counts={1, 2, 3}),  # type: ignore[arg-type]
        ),
        (InvalidArgument, f"{each}, not 3", lambda: comm.gather(x, counts=3)),  # type: ignore[arg-type]
        (
            InvalidArgument,
            f"{each}, not array([1., 2., 3.])",
            lambda: comm.gather(x, counts=np.array([1.0, 2, 3])),  # type: ignore[arg-type]
        ),
        (
            InvalidArgument,
            f"{each}, not array([[1],",
            lambda: comm.gather(x, counts=np.array([[1], [2], [3]])),  # type: ignore[arg-type]
        ),
        (InvalidArgument, "must be a pair", lambda: comm.all_to_all(whole, counts=counts)),  # type: ignore[arg-type]
        (InvalidArgument, "must be a pair", lambda: comm.all_to_all(whole, counts=(counts, [1, 2]))),
        (InvalidArgument, "must be a pair", lambda: comm.all_to_all(whole, counts=7)),  # type: ignore[arg-type]
        (
            InvalidArgument,
            f"an x of {total + 1} rows, not of shape ({total}, 3)",
            lambda: comm.all_to_all(whole, counts=([1, 2, 4], counts)),
        ),
        (InvalidArgument, "an x of 9 rows, not of shape (6, 3)", lambda: comm.reduce_scatter(whole, counts=[3, 3, 3])),
        (InvalidArgument, "an x of 1 row, not of shape ()", lambda: comm.all_gather(np.array(1.0), counts=[1, 1, 1])),
        (InvalidArgument, "an x of 9 rows, not of shape", lambda: comm.all_gather(x, counts=[9, 9, 9])),
        (InvalidArgument, "an x of 9 rows, not of shape", lambda: comm.gather(x, counts=[9, 9, 9], root=other)),
        (InvalidArgument, "an x of 6 rows, not of shape", lambda: comm.scatter(x[:1], counts=counts, root=other)),
        (
            InvalidArgument,
            "an out of 5 rows, not of shape (6, 3)",
            lambda: comm.scatter(None, mine, counts=[5, 5, 5], root=other),
        ),
        (InvalidArgument, "an out of (6, 3), not (5, 3)", lambda: comm.all_gather(x, mine[:5], counts=counts)),
        (InvalidArgument, "an out of (6, 3), not (18,)", lambda: comm.all_gather(x, mine.reshape(-1), counts=counts)),
        (
            InvalidArgument,
            "an out of (3, 3), not (6, 3)",
            lambda: comm.all_to_all(x[:1].repeat(3, 0), mine, counts=ones),
        ),
        (
            InvalidArgument,
            "x and out of all_to_all must lie apart",
            lambda: comm.all_to_all(mine[:3], mine[:3], counts=ones),
        ),
        (InvalidArgument, "x and out overlap", lambda: comm.reduce_scatter(mine, mine[1:3], counts=[2, 2, 2])),
        (InvalidArgument, "more than any memory", lambda: comm.gather(x[:0], counts=huge, root=other)),
        (InvalidArgument, "contiguous", lambda: comm.all_gather(np.ones((3, 4))[:, :2], counts=[3, 3, 3])),
        (WrongType, "NumPy array, not list", lambda: comm.all_gather([1.0], counts=counts)),  # type: ignore[arg-type]
        (WrongType, f"rank {r} needs x", lambda: comm.all_gather(None, mine, counts=counts)),  # type: ignore[arg-type]
        (WrongType, f"rank {r} needs out", lambda: comm.scatter(None, counts=counts, root=other)),
        (WrongType, "x is of float64, out of int64", lambda: comm.all_gather(x, np.ones((6, 3), int), counts=counts)),
    ]
    out = np.zeros((total, 3))
    for number, (error, text, call_) in enumerate(bad):
        odd = number % p
        with pytest.raises(error if r == odd else PeerRefused) as raised:
            # The others' call is right, and would write.
            call_() if r == odd else comm.all_gather(x, out, counts=counts)
        assert text.replace(f"rank {r} ", f"rank {odd} ") in str(raised.value), (number, text, raised.value)
        assert (mine == 1).all(), text
        assert (x == 1).all(), text
        assert not out.any(), text

    def refused(call_: Callable[[], object]) -> str:
        with pytest.raises(CallMismatch) as raised:
            call_()
        assert not out.any()
        return str(raised.value)

    texts = [
        refused(lambda: comm.all_gather(np.ones((r, 3)), out[:3], counts=[0, 1, 2]))
        if r == 2
        else refused(lambda: comm.all_gather(x, out, counts=counts)),
        refused(lambda: comm.all_gather(x[:1], out[:3], counts=None if r else [1, 1, 1])),
        refused(lambda: comm.all_to_all(mine[:3], out[: 2 + 2 * (r == 1)], counts=([1, 1, 1], [1, 2 * (r == 1), 1]))),
        refused(lambda: comm.all_gather(np.ones((1, 2 + r)), counts=[1, 1, 1])),
    ]
    assert (comm.all_gather(x, out, counts=counts) == 1).all()
    return texts


def test_wrong_calls() -> None:
    expected = [
        """\
error[call-mismatch]: the ranks do not make the same call: rank 2 differs in counts
note: rank 0 calls all_gather (9 x float64 a unit, sum, counts 1, 2, 3)
note: rank 1 calls all_gather (9 x float64 a unit, sum, counts 1, 2, 3)
note: rank 2 calls all_gather (6 x float64 a unit, sum, counts 0, 1, 2)
""",
        """\
error[call-mismatch]: the ranks do not make the same call: rank 1 differs in counts
note: rank 0 calls all_gather (3 x float64 a unit, sum, counts 1, 1, 1)
note: rank 1 calls all_gather (3 x float64 a unit, sum)
note: rank 2 calls all_gather (3 x float64 a unit, sum)
""",
        """\
error[call-mismatch]: the ranks do not make the same call: rank 1 sends 3 elements to rank 0, which expects 0
note: rank 0 calls all_to_all (3 x float64 a unit, sum, counts [[3, 3, 3], [3, 0, 3]])
note: rank 1 calls all_to_all (6 x float64 a unit, sum, counts [[3, 3, 3], [3, 6, 3]])
note: rank 2 calls all_to_all (3 x float64 a unit, sum, counts [[3, 3, 3], [3, 0, 3]])
""",
        """\
error[call-mismatch]: the ranks do not make the same call: rank 1 differs in size
note: rank 0 calls all_gather (2 x float64 a unit, sum, counts 1, 1, 1)
""",
    ]
    for texts in hocket.spawn(wrong, 3):
        for text, begin in zip(texts, expected, strict=True):
            assert text.startswith(begin), text


def test_counts_that_are_too_long_to_be_shown() -> None:
    """A line has room for some hundred; what is compared is not what is shown."""
    full = "[[1, 2], [1, 4]]"
    assert transfers([full, "[[3, 4], [2, 4]]"]) == (1, 0, 3, 4)
    assert transfers([full, "[[3, 4], [2,"]) is None
    assert str(CallMismatch(None, ("counts",), ())).startswith(
        "error[call-mismatch]: the ranks do not make the same call: some rank does not send what another expects\n"
    )
