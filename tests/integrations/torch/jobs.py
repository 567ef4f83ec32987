"""What ranks of torch.distributed do in tests: ``python -m tests.integrations.torch.jobs NAME``."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import os
import random
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from importlib.metadata import entry_points
from pathlib import Path

import torch
import torch.distributed as dist

from tests.integrations.torch import servers
from tests.integrations.torch.functions import all_functions, finished


def unchanged() -> None:
    """A program that knows nothing of hocket."""
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.full((5,), rank + 1.0)
    for _ in range(2):
        x.fill_(rank + 1)
        dist.all_reduce(x)
        assert x.tolist() == [size * (size + 1) / 2] * 5
    print(dist.get_backend(), type(dist.group.WORLD).__module__)
    dist.destroy_process_group()


def configured() -> None:
    """A program that knows nothing of hocket, nor of HOCKET_CONFIG."""
    dist.init_process_group("gloo")
    x = torch.ones(4096)
    dist.all_reduce(x)
    assert (x == dist.get_world_size()).all()
    print(dist.group.WORLD._calls.comm.explain("all_reduce", x.nbytes).why)
    dist.destroy_process_group()


def named() -> None:
    """A program that asks for hocket, next to a group of Gloo's."""
    import hocket.torch  # noqa: F401

    dist.init_process_group("hocket")
    rank = dist.get_rank()
    plain = dist.new_group(backend="gloo")
    print(dist.get_backend(), dist.get_backend(plain), type(plain).__module__)
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.BXOR):
        x, y = torch.full((3,), rank + 5), torch.full((3,), rank + 5)
        dist.all_reduce(x, op)
        dist.all_reduce(y, op, group=plain)
        assert torch.equal(x, y)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(torch.ones(2))
        dist.barrier()
    assert {"hocket:all_reduce", "hocket:barrier"} <= {event.name for event in profile.events()}
    if rank == 0:
        dist.send(torch.ones(2), 1)
    elif rank == 1:
        x = torch.zeros(2)
        dist.recv(x, 0)
        assert x.tolist() == [1, 1]
    dist.destroy_process_group()


def two_groups() -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """One of hocket, of all ranks, and the same of Gloo."""
    import hocket.torch  # noqa: F401

    dist.init_process_group("hocket")
    return dist.group.WORLD, dist.new_group(backend="gloo")


def functions() -> None:
    """Every function, now and later, twice, as Gloo has it."""
    ours, plain = two_groups()
    for name, function in all_functions():
        expected = finished(function(plain, False))
        for later in (False, True) * 2:
            found = finished(function(ours, later))
            assert len(found) == len(expected)
            for a, b in zip(found, expected, strict=True):
                assert torch.equal(a, b), (name, later, a, b)
    dist.destroy_process_group()


def models() -> None:
    """What each comes to, bit by bit."""
    from tests.integrations.torch.models import MODELS

    dist.init_process_group("cpu:gloo")
    for name, model in MODELS.items():
        whole = torch.cat([tensor.flatten().double() for tensor in model()])
        print(name, hashlib.sha256(whole.numpy().tobytes()).hexdigest()[:12], float(whole.sum()))
    dist.destroy_process_group()


def raised(call: Callable[[], object], kind: type[Exception] = dist.DistBackendError) -> str:
    """What a call raises."""
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError("nothing was raised")


def refusals() -> None:
    """Wrong arguments raise on every rank, and the next call works."""
    ours, _ = two_groups()
    rank, size = ours.rank(), ours.size()
    mine = rank == 1
    cases: list[Callable[[], object]] = [
        lambda: dist.all_reduce(torch.ones(5 if mine else 4)),
        lambda: dist.all_reduce(torch.ones(4, dtype=torch.int32 if mine else torch.float32)),
        lambda: dist.all_reduce(torch.ones(4), dist.ReduceOp.MIN if mine else dist.ReduceOp.MAX),
        lambda: dist.all_gather_into_tensor(torch.zeros(4 * size - mine), torch.ones(4)),
        lambda: dist.reduce_scatter_tensor(torch.zeros(4 + mine), torch.ones(4 * size)),
        lambda: dist.all_gather([torch.zeros(4 + mine) for _ in range(size)], torch.ones(4)),
        lambda: dist.all_to_all_single(torch.zeros(3), torch.zeros(3), [1, 2], [1 + mine, 2 - mine]),
        lambda: dist.barrier() if mine else dist.all_reduce(torch.ones(1)),
    ]
    assert "jobs.py:" in raised(lambda: dist.all_gather_into_tensor(torch.zeros(3), torch.ones(4)))
    for number, case in enumerate([*cases, *cases]):  # what was refused is not taken for a call that is known
        said = raised(case)
        assert ": error[" in said, said
        x = torch.ones(3)
        dist.all_reduce(x)
        assert x.tolist() == [size] * 3, number
        work = dist.all_reduce(torch.ones(7 + mine), async_op=True)
        assert "all_reduce: " in raised(work.wait)
        assert isinstance(work.exception(), dist.DistBackendError)
        assert work.is_completed()
        assert not work.is_success()
    dist.destroy_process_group()


def remembered() -> None:
    """Which calls are known from the one before: those that the native table can tell apart from others."""
    ours, plain = two_groups()
    size, calls, made = ours.size(), ours._calls, []  # type: ignore[attr-defined]
    make = calls.make
    calls.make = lambda *args, **options: made.append(args[0]) or make(*args, **options)
    line, whole = torch.arange(64.0), torch.arange(8.0 * size)
    known: list[Callable[[], torch.Tensor]] = [
        lambda: line[:8].clone(),
        lambda: line[:8].clone().view(2, 2, 2, 1, 1),  # of as many elements
        lambda: line[:8].clone().requires_grad_().detach(),
        lambda: line[:8].clone().view(8, 1).transpose(0, 1),  # is contiguous
    ]
    others: list[Callable[[], torch.Tensor]] = [
        lambda: line[:9].clone(),
        lambda: line[:8].double(),
        lambda: line[:16].clone()[::2],
        lambda: torch.frombuffer(bytearray(33), dtype=torch.float32, offset=1),
        lambda: torch.nn.Parameter(line[:8].clone(), requires_grad=False),
        lambda: line[:0],
    ]
    dist.all_reduce(known[0](), group=ours)
    for fresh, expected in *((fresh, 0) for fresh in known), *((fresh, 1) for fresh in others):
        x, y = fresh(), fresh().clone()
        made.clear()
        dist.all_reduce(x, group=ours)
        dist.all_reduce(y, group=plain)
        assert torch.equal(x, y)
        assert len(made) == expected, fresh
    block = 8 * ours.rank()
    for start, expected in (block, 1), (0 if ours.rank() else 8, 2):  # its own block, and that of another
        made.clear()
        for _ in range(2):
            gathered = whole.clone()
            dist.all_gather_into_tensor(gathered, gathered[start : start + 8], ours)
            if start == block:
                assert torch.equal(gathered, whole)
        assert len(made) == expected, start
    bits = torch.arange(8) % 2
    for dtypes in ((torch.float16, torch.bfloat16), (torch.int32, torch.float32), (torch.bool, torch.uint8)):
        for dtype in dtypes:  # of one width
            made.clear()
            dist.broadcast(bits.to(dtype), 0, ours)
            assert len(made) == 1, dtype
    made.clear()
    for later in (True, False, True):
        x = known[0]()
        work = dist.all_reduce(x, group=ours, async_op=later)
        if work is not None:
            work.wait()
        assert torch.equal(x, size * known[0]())
    assert not made
    z, summed = torch.full((8 * size,), 1 + 2j), torch.empty(8, dtype=torch.complex64)
    for _ in range(2):
        dist.reduce_scatter_tensor(summed, z.conj(), group=ours)
        assert torch.equal(summed, torch.full((8,), size * (1 - 2j)))
    ours.set_timeout(timedelta(seconds=50))  # which holds for calls that are known, too
    made.clear()
    dist.all_reduce(known[0](), group=ours)
    assert len(made) == 1
    dist.destroy_process_group()


def on_gpu(backend: str) -> None:
    """Tensors on a GPU go to the backend of torch, those of the CPU to hocket, pinned or not, in any order."""
    import hocket.torch  # noqa: F401

    dist.init_process_group(backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    gpu = torch.device("cuda", 0)
    total = size * (size + 1) / 2
    moves = [torch.device("cpu"), *([gpu] if size == 1 else [])]  # Gloo does not gather on a GPU
    for n in (3, 1 << 20):
        for device in (gpu, torch.device("cpu"), gpu):
            for later in (False, True):
                x = torch.full((n,), rank + 1.0, device=device)
                finished((dist.all_reduce(x, async_op=later), []))
                assert (x == total).all()
                x.fill_(rank)
                finished((dist.broadcast(x, size - 1, async_op=later), []))
                assert (x == size - 1).all()
        for device in moves:
            part, whole = torch.full((n,), float(rank), device=device), torch.zeros(n * size, device=device)
            dist.all_gather_into_tensor(whole, part)
            assert torch.equal(whole, torch.arange(float(size), device=device).repeat_interleave(n))
            dist.reduce_scatter_tensor(part, whole)
            assert (part == rank * size).all()
            swapped = torch.empty_like(whole)
            dist.all_to_all_single(swapped, whole)
            assert (swapped == rank).all()
        for _ in range(3):
            x = torch.full((n,), rank + 1.0, pin_memory=True)
            assert x.is_pinned()
            dist.all_reduce(x)
            assert (x == total).all()
            x.copy_(torch.full((n,), rank + 1.0, device=gpu), non_blocking=True)
            torch.cuda.synchronize()
            dist.broadcast(x, 0)
            assert (x == 1).all()
    model = torch.nn.Linear(64, 64).to(gpu)
    model = torch.nn.parallel.DistributedDataParallel(model)
    model(torch.full((4, 64), rank + 1.0, device=gpu)).sum().backward()
    assert torch.allclose(model.module.weight.grad, torch.full((64, 64), 4 * total / size, device=gpu))
    dist.barrier()
    dist.destroy_process_group()


def strict() -> None:
    """With HOCKET_STRICT=1 what would fall back raises, and the reason is said."""
    ours, _ = two_groups()
    x = torch.ones(4, dtype=torch.int32)
    print(raised(lambda: dist.send(x, 1 - ours.rank())))
    print(raised(lambda: dist.all_reduce(x, dist.ReduceOp.AVG)))
    print(raised(lambda: dist.all_reduce(torch.eye(2).to_sparse())))
    dist.all_reduce(x)
    dist.destroy_process_group()


def fall_backs() -> None:
    """What hocket does not do is done by Gloo, and said once."""
    dist.init_process_group("gloo")
    rank, other = dist.get_rank(), 1 - dist.get_rank()
    for _ in range(2):
        x = torch.eye(2).to_sparse()
        dist.all_reduce(x)
        assert torch.equal(x.to_dense(), 2 * torch.eye(2))
        sent, got = torch.full((2,), rank), torch.zeros(2, dtype=torch.int64)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, other), dist.P2POp(dist.irecv, got, other)]):
            work.wait()
        assert got.tolist() == [other, other]
    cases = (
        (torch.int32, dist.ReduceOp.AVG),
        (torch.float16, dist._make_nccl_premul_sum(0.5)),
        (torch.float32, dist._make_nccl_premul_sum(torch.ones(1))),
    )
    for dtype, op in cases:
        print(raised(lambda dtype=dtype, op=op: dist.all_reduce(torch.ones(2, dtype=dtype), op), RuntimeError))
    dist.monitored_barrier()
    dist.destroy_process_group()


def apart() -> None:
    """Ranks that seem to be on two machines."""
    from hocket.runtime import stores

    known = stores.identity
    stores.identity = lambda *given: {**known(*given), "machine": os.environ["RANK"]}
    gc.disable()
    dist.init_process_group("gloo")
    group = weakref.ref(dist.group.WORLD)
    x = torch.ones(3)
    if os.environ.get("HOCKET_STRICT") == "1":
        print(raised(lambda: dist.all_reduce(x)))
    else:
        dist.all_reduce(x)
        assert x.tolist() == [2, 2, 2]
        dist.barrier()
    dist.destroy_process_group()
    assert group() is None, "Gloo's threads outlive the interpreter"


def dies() -> None:
    """A rank ends in the middle of training."""
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1000, 1000))
    for step in range(1000):
        if step == 3 and dist.get_rank() == 1:
            os._exit(0)
        begin = time.monotonic()
        try:
            model(torch.ones(2, 1000)).sum().backward()
        except RuntimeError as error:
            print(f"{time.monotonic() - begin:.2f} s: {error}")
            break
    else:
        raise AssertionError("nothing was raised")
    print(raised(lambda: dist.all_reduce(torch.ones(2))))
    dist.destroy_process_group()


def times_out() -> None:
    """A rank does not come: to a barrier with a timeout; to groups where one is set, or that have one."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=1))
    store = dist.distributed_c10d._get_default_store()
    patient, limited, hurried = (dist.new_group(timeout=timedelta(seconds=90)) for _ in range(3))
    x = torch.ones(3)
    dist.all_reduce(x, group=limited)
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=0.2), limited)
    hurried.set_timeout(timedelta(seconds=0.2))
    if dist.get_rank() == 0:
        print(raised(lambda: dist.barrier(patient, timeout=timedelta(seconds=0.2))))
        print(raised(lambda: dist.all_reduce(x, group=limited)))
        print(raised(lambda: dist.barrier(hurried)))
        print(raised(dist.barrier))
        store.set("over", "")
    else:
        store.wait(["over"], timedelta(seconds=60))
        print(raised(dist.barrier))
    dist.destroy_process_group()


class Contended:
    """A lock that says when somebody has to wait for it."""

    def __init__(self) -> None:
        self._lock, self.wanted = threading.Lock(), threading.Event()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.wanted.set()
            self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def second() -> None:
    """Whoever waits second for a call returns when its outputs are copied, not while the first one copies them."""
    from hocket.torch.calls import Work

    lock, copying, copied = Contended(), threading.Event(), threading.Event()

    class Slow(torch.Tensor):
        def copy_(self, *given: object) -> None:  # type: ignore[override]
            copying.set()
            lock.wanted.wait()  # until the second one waits for this, or has returned
            copied.set()

    x = torch.ones(4).as_subclass(Slow)
    work = Work("all_reduce", [], [x], [(x, torch.ones(4))])
    work._lock = lock
    with ThreadPoolExecutor() as pool:
        first = pool.submit(work.wait)
        copying.wait()
        found = pool.submit(lambda: work.wait() and copied.is_set())
        found.add_done_callback(lambda _: lock.wanted.set())
        assert found.result()
        first.result()


def waits() -> None:
    """A wait with a limit; what else a Work can do."""
    ours, _ = two_groups()
    second()
    x, store = torch.ones(1000), dist.distributed_c10d._get_default_store()
    if ours.rank() == 1:
        store.wait(["tried"])
    work = dist.all_reduce(x, async_op=True)
    if ours.rank() == 0:
        assert not work.is_completed()
        print(raised(lambda: work.wait(timedelta(seconds=0.1))))
        store.set("tried", "")
    done: list[object] = []
    future = work.get_future().then(lambda future: done.append(future.value()))
    work.wait()
    future.wait()
    assert torch.equal(done[0][0], torch.full((1000,), 2.0))  # type: ignore[index]
    assert work.is_success()
    assert work.result()[0] is x
    for dropped in range(50):
        dist.all_reduce(torch.full((10000,), float(dropped)), async_op=True)
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


def overlapping() -> None:
    """An output that overlaps its input, but not as a call in place would, gets what it would get apart from it."""
    ours, _ = two_groups()
    n, gap = 2_000_000, 1000  # so long that memory which is freed is no more
    for later in (False, True):
        memory = torch.arange(n + gap, dtype=torch.float32) + ours.rank()
        x, out = memory[gap:], memory[:n]
        half = x.chunk(2)[ours.rank()].clone()
        work = dist.all_to_all_single(out, x, group=ours, async_op=later)
        if work is not None:
            work.wait()
        expected = [half - ours.rank() + peer for peer in range(2)]
        assert torch.equal(out, torch.cat(expected))
    dist.destroy_process_group()


def progress() -> None:
    """A call in the background goes on while this rank lets no other thread use Python."""
    ours, _ = two_groups()
    x, store = torch.ones(1 << 20), dist.distributed_c10d._get_default_store()
    dist.all_reduce(x)
    work = dist.all_reduce(x, async_op=True)
    if ours.rank() == 1:
        ctypes.PyDLL(None).sleep(2)  # with the GIL
        store.set("awake", "")
    work.wait()
    assert ours.rank() == 1 or not store.check(["awake"])
    dist.barrier()
    dist.destroy_process_group()


def threads() -> None:
    """Threads that use one group are served one after the other."""
    dist.init_process_group("gloo")

    def sums() -> None:
        for number in range(200):
            x = torch.ones(100)
            work = dist.all_reduce(x, async_op=bool(number % 2))
            if work is not None:
                work.wait()
            assert x.tolist() == [2.0] * 100

    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(sums) for _ in range(2)]:
            done.result()
    dist.destroy_process_group()


def leaves() -> None:
    """Groups that are made and go leave nothing; one that is not destroyed is no trouble at the end."""
    dist.init_process_group("gloo")
    seen = []
    for number in range(8):
        group = dist.new_group()
        x = torch.ones(10000)
        work = dist.all_reduce(x, group=group, async_op=True)
        dist.destroy_process_group(group)
        work.wait()
        assert x[0] == 2
        del group, work
        gc.collect()
        if number > 1:
            seen.append(len(list(Path("/proc/self/fd").iterdir())))
    assert seen[0] == seen[-1], seen
    globals()["held"] = dist.all_reduce(torch.ones(100), async_op=True), dist.new_group()


def sequences(number: str) -> None:
    """Random calls on several groups, now and later, mixed with calls of the same on Gloo."""
    ours, plain = two_groups()
    size = ours.size()
    groups = [(ours, plain), (dist.new_group(), dist.new_group(backend="gloo"))]
    halves = [list(range(size // 2 + 1)), list(range(size // 2, size))]
    for ranks in halves:
        made = dist.new_group(ranks), dist.new_group(ranks, backend="gloo")
        if ours.rank() in ranks:
            groups.append(made)
    known = {len(ranks): [f for f in all_functions() if "_objects" not in f[0] or len(ranks) > 1] for ranks in halves}
    known[size] = list(all_functions())
    for seed in range(int(number)):
        flying = []
        draw = random.Random(seed)
        for _ in range(draw.randrange(1, 8)):
            which, at, later = draw.randrange(4), draw.random(), draw.random() < 0.5
            mine = [pair for pair in groups[:2] if which < 2] or groups[2:]
            for group, reference in [mine[which]] if which < 2 else mine:
                choices = known[group.size()]
                name, function = choices[int(at * len(choices))]
                flying.append((name, function(group, later), finished(function(reference, False))))
        draw.shuffle(flying)
        for name, outcome, expected in flying:
            for a, b in zip(finished(outcome), expected, strict=True):
                assert torch.equal(a, b), (seed, name, a, b)
    dist.destroy_process_group()


def orders() -> None:
    """Groups of disjoint ranks, made in different orders; a mesh; groups of groups."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    ours, others = ([0, 1], [2, 3]) if rank < 2 else ([2, 3], [0, 1])
    groups = [dist.new_group(ours, use_local_synchronization=True) for _ in range(3)]
    for group in reversed(groups):
        x = torch.tensor([float(rank)])
        dist.all_reduce(x, group=group)
        assert x.item() == sum(ours)
    assert others
    _, subgroups = dist.new_subgroups(2)
    assert len(subgroups) == 2
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    for name, expected in (("a", rank % 2 * 2 + 2), ("b", rank // 2 * 4 + 1)):
        x = torch.tensor([float(rank)])
        dist.all_reduce(x, group=mesh.get_group(name))
        assert x.item() == expected
        assert "hocket" in type(mesh.get_group(name)).__module__
    dist.destroy_process_group()


def plug_in(server: str) -> None:
    """What a server does in each of its processes."""
    (found,) = entry_points(group=server, name="hocket")
    found.load()()


def vllm() -> None:
    """What vLLM's workers on CPUs call of a group, as Gloo has it; and sums have the same bits on all ranks."""
    servers.vllm()
    plain = sys.modules[servers.VLLM]._CPUSHMDistributed
    plug_in("vllm.general_plugins")
    dist.init_process_group("gloo")
    ours = servers.CpuCommunicator(dist.new_group())
    print("runs on", type(ours.module).__module__)
    os.environ["HOCKET"] = "0"
    gloo = servers.CpuCommunicator(dist.new_group(), plain)
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in (torch.bfloat16, torch.float32):
        x = (torch.arange(3 * 4096).view(3, 4096) % 5 + rank).to(dtype)
        assert torch.equal(ours.all_reduce(x.clone()), gloo.all_reduce(x.clone()))
        assert torch.equal(ours.all_reduce(x.clone()[:, ::2]), gloo.all_reduce(x[:, ::2].contiguous()))
        assert torch.equal(ours.all_gather(x), gloo.all_gather(x))
        for found, expected in zip(ours.gather(x[1:], size - 1), gloo.gather(x[1:], size - 1), strict=True):
            assert torch.equal(found, expected)
    tensors = {"hidden": torch.arange(6.0).view(2, 3).T, "none": torch.empty(0, 3, dtype=torch.bfloat16)}
    if rank == 0:
        ours.module.send_tensor_dict(tensors, size - 1)
    elif rank == size - 1:
        received = ours.module.recv_tensor_dict(0)
        assert list(received) == list(tensors)
        for name, tensor in received.items():
            assert tensor.dtype == tensors[name].dtype
            assert torch.equal(tensor, tensors[name])
    torch.manual_seed(rank)
    everywhere = gloo.all_gather(ours.all_reduce(torch.randn(1, 5000, dtype=torch.bfloat16)))
    assert all(torch.equal(each, everywhere[0]) for each in everywhere)
    dist.destroy_process_group()


def vllm_compiled() -> None:
    """torch.compile has both operators in one graph, in order, also where what they are given is used again."""
    servers.vllm()
    plug_in("vllm.general_plugins")
    dist.init_process_group("gloo")
    communicator, rank = servers.CpuCommunicator(dist.new_group()), dist.get_rank()

    def layer(x: torch.Tensor) -> torch.Tensor:
        return communicator.all_gather(communicator.all_reduce(2 * x) + communicator.all_reduce(x)) + x[0]

    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        x, y = torch.full((2, 8), rank + 1.0), torch.full((2, 8), rank + 1.0)
        assert torch.equal(compiled(x), layer(y))
        assert torch.equal(x, y)
        assert x[0, 0] == sum(range(1, dist.get_world_size() + 1))
    dist.destroy_process_group()


def other_vllms() -> None:
    """Versions of vLLM that the plug-in was not written for, one that does not work on CPUs, one without HOCKET=1."""

    class More(servers.Kernels):
        def reduce_scatter(self) -> None: ...

    for kernels in (None, More):
        servers.vllm(kernels)
        print(raised(lambda: plug_in("vllm.general_plugins"), ImportError))
    sys.modules["vllm.platforms"].current_platform.is_cpu = lambda: False
    plug_in("vllm.general_plugins")
    os.environ["HOCKET"] = "0"
    servers.vllm(More)
    plug_in("vllm.general_plugins")
    assert sys.modules[servers.VLLM]._CPUSHMDistributed is More


def sglang() -> None:
    """SGLang's sums of tensor parallelism are torch's, so hocket's."""
    servers.sglang()
    plug_in("sglang.srt.plugins")
    dist.init_process_group("gloo")
    x = torch.ones(4096, dtype=torch.bfloat16)
    servers.sglang_all_reduce(x, dist.new_group())
    assert (x == dist.get_world_size()).all()
    del sys.modules[servers.SGLANG].is_shm_available
    print(raised(lambda: plug_in("sglang.srt.plugins"), ImportError))
    dist.destroy_process_group()


if __name__ == "__main__":
    job, _, argument = sys.argv[1].partition(":")
    globals()[job](*filter(None, [argument]))
