"""What a communicator promises: results and forms of a call, wrong arguments, disagreement."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

import hocket
from hocket import AllReduce, Communicator, HocketError, Program, Schedule, chunk
from hocket.algorithms import all_pairs, ring
from hocket.errors import (
    CallMismatch,
    CommunicatorBusy,
    CommunicatorDead,
    Declined,
    InvalidArgument,
    PeerRefused,
    UnevenSize,
    WrongType,
)
from hocket.ir.schedule import Narrowing
from hocket.ir.traffic import traffic

Array = NDArray[np.generic]


def test_alone_without_a_launcher() -> None:
    with hocket.init() as comm:
        assert (comm.rank, comm.size) == (0, 1)
        assert repr(comm) == "<Communicator rank 0 of 1>"
        x = np.arange(5.0)
        assert comm.all_reduce(x) is x
        out = np.zeros(5)
        assert comm.all_reduce(x, out) is out
        assert (out == np.arange(5.0)).all()
        comm.barrier()
    with pytest.raises(CommunicatorDead, match="closed"):
        comm.barrier()
    comm.close()


def test_init_wants_a_timeout() -> None:
    for wrong in (0, -1.0, "long"):
        with pytest.raises(InvalidArgument):
            hocket.init(timeout=wrong)  # type: ignore[arg-type]


def test_importing_and_compiling_load_no_native_code() -> None:
    code = """
import sys, hocket, hocket.algorithms.ring as ring
ring.all_reduce(4).compile()
assert "hocket._native" not in sys.modules
hocket.init().close()
assert "hocket._native" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# ---------------------------------------------------------------------------------------------------------------
# Forms of a call


def forms(comm: Communicator) -> None:
    p, r, n = comm.size, comm.rank, 30

    def block(rank: int) -> NDArray[np.float64]:
        return np.arange(n, dtype=np.float64) + 100 * rank

    total = sum(block(k) for k in range(p))
    everything = np.concatenate([block(k) for k in range(p)])

    # AllReduce in place: in x, or x untouched and the result in out.
    x = block(r)
    assert comm.all_reduce(x) is x
    assert (x == total).all()
    x, out = block(r), np.full(n, -1.0)
    assert comm.all_reduce(x, out) is out
    assert (out == total).all()
    assert (x == block(r)).all()
    assert comm.all_reduce(x, x) is x
    assert (x == total).all()
    x.flags.writeable = False
    assert (comm.all_reduce(x, out) == p * total).all()
    shaped = comm.all_reduce(block(r).reshape(2, 3, 5))
    assert shaped.shape == (2, 3, 5)
    assert comm.all_reduce(np.array(float(r))).shape == ()

    # AllGather: allocated along axis 0, given, and with x the own block of out.
    gather = ring.all_gather(p).compile()
    found = comm.run(gather, block(r).reshape(2, 15))
    assert found is not None
    assert found.shape == (2 * p, 15)
    assert (found.reshape(-1) == everything).all()
    out = np.zeros(n * p)
    out[r * n : (r + 1) * n] = block(r)
    assert comm.run(gather, out[r * n : (r + 1) * n], out) is out
    assert (out == everything).all()

    # ReduceScatter in place: the program works in "in", yet x is only written if out lies in it.
    scatter = ring.reduce_scatter(p).compile()
    x = everything * (r + 1)
    wanted = block(r) * p * (p + 1) / 2
    found = comm.run(scatter, x)
    assert found is not None
    assert found.shape == (n,)
    assert (found == wanted).all()
    assert (x == everything * (r + 1)).all()
    out = np.zeros(n)
    assert comm.run(scatter, x, out) is out
    assert (out == wanted).all()
    assert (x == everything * (r + 1)).all()
    own = x[r * n : (r + 1) * n]
    assert comm.run(scatter, x, own) is own
    assert (own == wanted).all()

    # Rooted collectives: None where there is no input, None returned where there is no output.
    with hocket.Program(hocket.Broadcast(p, root=1)) as program:
        for k in range(p):
            hocket.chunk(1, "in", 0).copy(k, "out", 0)
    broadcast = program.compile()
    out = np.zeros(n)
    assert comm.run(broadcast, block(1) if r == 1 else None, out) is out
    assert (out == block(1)).all()
    with hocket.Program(hocket.Reduce(p, root=1, inplace=True)) as program:
        c = hocket.chunk(1, "in", 0)
        for k in range(p):
            if k != 1:
                c = c.reduce(hocket.chunk(k, "in", 0))
    reduce = program.compile()
    x = block(r)
    found = comm.run(reduce, x)
    assert (found is x) == (r == 1)
    assert found is None or (found == total).all()
    assert r == 1 or (x == block(r)).all()

    # An average is the sum divided, wherever the result lies; operands of a call that gives one elsewhere stay.
    x = block(r)
    assert comm.all_reduce(x, op="avg") is x
    assert (x == total / p).all()
    x = everything * (r + 1)
    found = comm.run(scatter, x, op="avg")
    assert found is not None
    assert (found == wanted / p).all()
    assert (x == everything * (r + 1)).all()
    found = comm.run(reduce, block(r), op="avg")
    assert found is None or (found == total / p).all()

    # A rank that has no data at all takes the size from the others.
    custom = hocket.Custom(
        p, inputs=[1] + [0] * (p - 1), outputs=[0] * (p - 1) + [1], post=lambda rank, index: [(0, index)]
    )
    with hocket.Program(custom) as program:
        c = hocket.chunk(0, "in", 0)
        for k in range(1, p - 1):
            c = c.copy(k, "sc", 0)
        c.copy(p - 1, "out", 0)
    chain = program.compile()
    out = np.zeros(n)
    found = comm.run(chain, block(0) if r == 0 else None, out if r == p - 1 else None)
    assert (found is None) == (r != p - 1)
    assert found is None or (found == block(0)).all()


def test_forms() -> None:
    hocket.spawn(forms, 3)


# ---------------------------------------------------------------------------------------------------------------
# Wrong arguments and disagreement: an error on every rank, nothing written, and the communicator goes on


def expect(error: type[HocketError], text: str, call: Callable[[], object]) -> None:
    with pytest.raises(error, match=re.escape(text)):
        call()


def wrong_arguments(comm: Communicator) -> None:
    schedule = ring.all_reduce(comm.size).compile()
    other_size = ring.all_reduce(comm.size + 1).compile()
    gather = ring.all_gather(comm.size).compile()
    too_many_slots = replace(schedule, slots=1 << 32)
    x, ints = np.ones(12, np.float32), np.ones(12, np.int32)
    read_only = np.ones(12, np.float32)
    read_only.flags.writeable = False
    overlapping = np.ones(20, np.float32)
    pairs = np.zeros(12, np.dtype([("value", "f4"), ("index", "i4")]))
    unaligned = np.zeros(49, np.uint8)[1:].view(np.float32)
    bad: list[tuple[type[HocketError], str, Callable[[], object]]] = [
        (WrongType, "NumPy array, not list", lambda: comm.run(schedule, [1.0])),  # type: ignore[arg-type]
        (WrongType, "needs x", lambda: comm.run(schedule, None)),
        (WrongType, "M8[s]; only bool, int8", lambda: comm.run(schedule, np.zeros(3, "M8[s]"))),
        (WrongType, "longdouble; only", lambda: comm.run(schedule, np.zeros(3, np.longdouble))),
        (WrongType, "i4'), ('f1', '<f8')]; only", lambda: comm.run(schedule, np.zeros(3, "i4,f8"))),
        (WrongType, "x is of object: references", lambda: comm.run(schedule, np.zeros(3, object))),
        (WrongType, "references mean nothing", lambda: comm.run(gather, np.zeros(3, object))),
        (WrongType, "references mean nothing", lambda: comm.run(gather, np.zeros(3, "O,i4"))),
        (WrongType, "references mean nothing", lambda: comm.run(schedule, x, np.zeros(12, object))),
        (WrongType, "int32 has no avg, only sum, prod, min, max, band", lambda: comm.run(schedule, ints, op="avg")),
        (WrongType, "float32 has no band, only sum", lambda: comm.run(schedule, x, op="band")),
        (WrongType, "float32_int32 has no sum, only minloc, maxloc", lambda: comm.run(schedule, pairs)),
        (WrongType, "bool has no avg", lambda: comm.run(schedule, ints > 0, op="avg")),
        (WrongType, "complex64 has no max, only sum, prod, avg", lambda: comm.run(schedule, x + 1j, op="max")),
        (InvalidArgument, "does not sum over all ranks", lambda: comm.run(gather, x, op="avg")),
        (WrongType, "x is of float32, out of float64", lambda: comm.run(schedule, x, np.ones(12))),
        (WrongType, "a Schedule, not", lambda: comm.run("ring", x)),  # type: ignore[arg-type]
        (WrongType, ">f4", lambda: comm.run(schedule, np.ones(3, ">f4"))),
        (WrongType, "MaskedArray", lambda: comm.run(schedule, np.ma.ones(12, np.float32))),
        (InvalidArgument, "contiguous", lambda: comm.run(schedule, np.ones((4, 6), np.float32)[:, :3])),
        (InvalidArgument, "aligned", lambda: comm.run(schedule, unaligned)),
        (InvalidArgument, "out of 12 elements, not 13", lambda: comm.run(schedule, x, np.ones(13, np.float32))),
        (InvalidArgument, "read-only", lambda: comm.run(schedule, read_only)),
        (InvalidArgument, "read-only", lambda: comm.run(schedule, x, read_only)),
        (InvalidArgument, "overlap", lambda: comm.run(schedule, overlapping[:12], overlapping[4:16])),
        (InvalidArgument, "op must be one of sum, prod, min, max, avg", lambda: comm.run(schedule, x, op="mean")),
        (InvalidArgument, "op must be one of", lambda: comm.run(schedule, x, op=[])),  # type: ignore[arg-type]
        (InvalidArgument, "op must be one of", lambda: comm.run(schedule, x, op="\ud800")),
        (InvalidArgument, "tile", lambda: comm.run(schedule, x, tile=96)),
        (InvalidArgument, "too large to be run: slots 4294967296", lambda: comm.run(too_many_slots, x)),
        (InvalidArgument, f"for {comm.size + 1} ranks", lambda: comm.run(other_size, x)),
        (
            InvalidArgument,
            "blocks of one size",
            lambda: comm.run(ring.reduce_scatter(comm.size).compile(), np.ones(3 * comm.size + 1)),
        ),
    ]
    for number, (error, text, call) in enumerate(bad):
        one = number % comm.size
        kept = x.tobytes()
        if comm.rank == one:
            expect(error, text, call)
        else:
            expect(PeerRefused, f"rank {one} could not take part", lambda: comm.run(schedule, x))
        assert x.tobytes() == kept
        y = np.full(5, comm.rank, np.int64)
        assert (comm.all_reduce(y) == sum(range(comm.size))).all()


def test_wrong_arguments_of_one_rank() -> None:
    hocket.spawn(wrong_arguments, 3)


def disagreement(comm: Communicator) -> None:
    schedule, other = ring.all_reduce(comm.size).compile(), ring.all_reduce(comm.size, instances=2).compile()
    x, out = np.ones(12, np.float32), np.zeros(12, np.float32)
    odd: list[tuple[str, Callable[[], object]]] = [
        ("size", lambda: comm.run(schedule, x[:7].copy(), out[:7])),
        ("type", lambda: comm.run(schedule, x.view(np.int32), out.view(np.int32))),
        ("operator", lambda: comm.run(schedule, x, out, op="max")),
        ("operator", lambda: comm.run(schedule, x, out, op="avg")),
        ("tile", lambda: comm.run(schedule, x, out, tile=64)),
        ("schedule", lambda: comm.run(other, x, out)),
        ("schedule", comm.barrier),
    ]
    for number, (what, call) in enumerate(odd):
        one = number % comm.size
        differs = f"rank {one if one else 1} differs in {what}"
        expect(CallMismatch, differs, call if comm.rank == one else lambda: comm.run(schedule, x, out))
        assert not out.any()
        comm.barrier()
    assert comm.run(schedule, x, out) is out
    assert (out == comm.size).all()


def test_disagreement() -> None:
    hocket.spawn(disagreement, 3)


def every_call(comm: Communicator, x: Array, out: Array) -> list[Callable[[], object]]:
    """The ways to make one, by whoever does not decline it."""
    schedule = ring.all_reduce(comm.size).compile()
    prepared = comm.prepare("all_reduce", x.shape, x.dtype)
    return [
        lambda: comm.all_reduce(x, out),
        lambda: comm.all_reduce(x, out, async_=True).wait(),
        lambda: prepared(x, out),
        lambda: prepared.start(x, out).wait(),
        lambda: comm.broadcast(x if comm.rank == 0 else None, out if comm.rank else None),
        lambda: comm.run(schedule, x),
        comm.barrier,
        comm.dup,
    ]


def declining(comm: Communicator) -> None:
    """What one rank declines, or two, all do; nothing is written, and the next call works."""
    p, r = comm.size, comm.rank
    for allocate in (np.empty, comm.empty):
        for n in (1, 3000, 1 << 18):
            x, out = allocate(n, np.float64), allocate(n, np.float64)
            x[:], out[:] = 1, -1
            for turn, call in enumerate(every_call(comm, x, out)):
                first = turn % p
                mine = r == first or (turn > 4 and r == p - 1)
                with pytest.raises(Declined) as caught:
                    comm.decline(f"strided, says {r}") if mine else call()
                assert (caught.value.rank, caught.value.reason) == (first, f"strided, says {first}")
                assert (x == 1).all()
                assert (out == -1).all()
            comm.all_reduce(x, out)
            assert (out == p).all()
    wrong = WrongType if r == 0 else PeerRefused
    with pytest.raises(wrong, match="x must be a NumPy array"):
        comm.decline("no") if r == p - 1 else comm.all_reduce("x" if r == 0 else x)  # type: ignore[call-overload]
    with pytest.raises(wrong, match="the reason must be a text"):
        comm.decline(1) if r == 0 else comm.barrier()  # type: ignore[arg-type]
    comm.barrier()


@pytest.mark.parametrize("ranks", [2, 3])
def test_declining(ranks: int) -> None:
    hocket.spawn(declining, ranks)


def uneven(comm: Communicator) -> None:
    whole = ring.all_reduce(comm.size).compile()
    narrow = Schedule("narrow", whole.collective, "simple", whole.slots, whole.ranks, (Narrowing(0, comm.size - 1),))
    expect(UnevenSize, "chunk 0 and chunk 1 differ", lambda: comm.run(narrow, np.ones(3)))
    np.testing.assert_array_equal(comm.run(narrow, np.ones(16 * comm.size)), comm.size)


def test_sizes_a_program_cannot_run_on() -> None:
    hocket.spawn(uneven, 2)


def two_threads(comm: Communicator, name: str) -> str:
    """Both threads of rank 0 want a call that rank 1 does not enter yet: one of them waits, the other is told so."""
    found: list[str] = []
    begun = threading.Event()
    second = comm.dup()
    calls: dict[str, Callable[[], object]] = {
        "barrier": comm.barrier,
        "all_reduce": lambda: comm.all_reduce(np.ones(3)),
        "split": lambda: comm.split(0),
        "wrong": lambda: comm.broadcast(np.ones(3), root=5),
    }

    def enter() -> None:
        begun.set()
        try:
            calls[name]()
        except HocketError as error:
            found.append(error.code)

    if name == "all_reduce":
        comm.all_reduce(np.ones(3))  # the next one is known
    if comm.rank == 0:
        threads = [threading.Thread(target=enter) for _ in range(2)]
        for thread in threads:
            thread.start()
        while not found:
            begun.wait()
        second.barrier()
        for thread in threads:
            thread.join()
    else:
        second.barrier()
        enter()
    comm.barrier()
    return ",".join(found)


@pytest.mark.parametrize("name", ["barrier", "all_reduce", "split"])
def test_a_second_thread_is_refused(name: str) -> None:
    assert hocket.spawn(two_threads, 2, (name,)) == [CommunicatorBusy.code, ""]


def test_a_second_thread_with_wrong_arguments_is_refused() -> None:
    assert hocket.spawn(two_threads, 2, ("wrong",)) == [f"{CommunicatorBusy.code},invalid-argument", "invalid-argument"]


def threads_in_turn(comm: Communicator) -> None:
    """A call in the background waits for the one that another thread is in, and the next call for that."""
    second = comm.dup()
    found: list[str] = []

    def enter() -> None:
        try:
            comm.barrier()
        except CommunicatorBusy:  # the other thread is in it
            pending = comm.all_reduce(np.ones(3), async_=True)
            second.barrier()
            assert comm.all_reduce(np.ones(4))[0] == 2
            assert pending.done()
            found.append("refused")
        else:
            found.append("entered")

    if comm.rank == 0:
        threads = [threading.Thread(target=enter) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == ["entered", "refused"]
    else:
        second.barrier()
        comm.barrier()
        assert comm.all_reduce(np.ones(3))[0] == 2
        assert comm.all_reduce(np.ones(4))[0] == 2


def test_threads_take_turns_in_the_background() -> None:
    hocket.spawn(threads_in_turn, 2)


def no_memory(comm: Communicator) -> None:
    with Program(AllReduce(comm.size, chunks=2, inplace=True)) as program:
        for i in range(2):
            total = chunk(0, "in", i).reduce(chunk(1, "in", i))
            total.copy(0, "sc", 1 << 14).copy(1, "in", i)
    if comm.rank == 0:
        resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
    x = np.ones(100_000)
    with pytest.raises(MemoryError if comm.rank == 0 else PeerRefused, match="no memory for slots and scratch"):
        comm.run(program.compile(), x)
    assert (x == 1).all()
    assert (comm.all_reduce(np.ones(5)) == comm.size).all()


def large_tiles(comm: Communicator) -> None:
    """Every tile that may be asked for can be had: it is as long as a chunk needs, and slots fit in their window."""
    for schedule in (ring.all_reduce(2).compile(), all_pairs.all_reduce(2, instances=3).compile()):
        for tile in (1 << 28, 1 << 20):
            for n in (8, 5000, 100_000):
                x = np.full(n, comm.rank + 1)
                before = comm.traffic()
                assert (comm.run(schedule, x, tile=tile) == 3).all()  # type: ignore[union-attr]
                assert comm.traffic() - before == traffic(schedule, n, 8, apart=False)[comm.rank]
        settled = comm._endpoint.outlook(schedule, 1 << 33, 1 << 28)
        assert settled.tile * settled.slots <= 1 << 30
        assert settled.tile >= 1 << 25


def test_the_largest_tile() -> None:
    hocket.spawn(large_tiles, 2)


def test_scratch_that_cannot_be_had_is_an_error_on_every_rank_before_anything_is_written() -> None:
    hocket.spawn(no_memory, 2)


def far_channel(comm: Communicator) -> None:
    with Program(AllReduce(comm.size, inplace=True)) as program:
        chunk(0, "in", 0).reduce(chunk(1, "in", 0), ch=60_000).copy(1, "in", 0)
    with pytest.raises(InvalidArgument, match="uses channel 7680127; between 2 ranks there are 4194304"):
        comm.run(program.compile(instances=128), np.ones(5))


def test_a_channel_beyond_what_ranks_can_have_is_refused() -> None:
    hocket.spawn(far_channel, 2)


# What users read of calls by name -----------------------------------------------------------------------------------


def different_calls(comm: Communicator) -> list[str]:
    x, block = np.ones(8, np.float32), np.ones(4, np.float32)
    odd: list[tuple[Callable[[], object], Callable[[], object]]] = [
        (lambda: comm.broadcast(x, root=0), lambda: comm.broadcast(x, root=1)),
        (lambda: comm.broadcast(x), lambda: comm.reduce(x)),
        (lambda: comm.all_reduce(np.ones(1 << 18, np.float32)), lambda: comm.all_reduce(x)),
        (lambda: comm.scatter(None, block), lambda: comm.scatter(None, block)),
    ]
    texts = []
    for mine, others in odd:
        with pytest.raises(HocketError) as caught:
            mine() if comm.rank == 0 else others()
        texts.append(str(caught.value))
    return texts


def test_errors_of_calls_by_name_say_what_was_called() -> None:
    for root, collective, size, missing in hocket.spawn(different_calls, 2):
        assert "rank 1 differs in arguments\nnote: rank 0 calls broadcast(root=0) (8 x float32" in root
        assert "\nnote: rank 1 calls broadcast(root=1) (8 x float32" in root
        assert "rank 1 differs in collective\nnote: rank 0 calls broadcast(root=0)" in collective
        assert "rank 1 differs in size\nnote: rank 0 calls all_reduce (262144 x float32" in size
        assert "rank 0 needs x in scatter(root=0)" in missing
        assert not re.search(r"\[[0-9a-f]{16}\]|knomial|direct|one_shot", root + collective + size + missing)


def test_a_tensor_gets_a_hint_without_torch() -> None:
    tensor = type("Tensor", (), {"__module__": "torch"})()
    with hocket.init() as comm:
        for call in (lambda: comm.all_reduce(tensor), lambda: comm.run(ring.all_reduce(1).compile(), tensor)):
            with pytest.raises(WrongType, match=r"not torch.Tensor(.|\n)*help: x\.numpy\(\)"):
                call()
        with pytest.raises(WrongType) as caught:
            comm.all_reduce([1.0])  # type: ignore[type-var]
        assert "numpy()" not in str(caught.value)
