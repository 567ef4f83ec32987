"""A rank of torch.distributed on one of several nodes, which MPI has started: ``nodes.py NAME ...``, functions of it.

Each makes the default group anew, in a file of the folder HOCKET_TEST_STORE. "right" is printed if all is.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import combinations, count
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import hocket.torch
from tests.integrations.torch.functions import all_functions, finished
from tests.integrations.torch.jobs import raised
from tests.integrations.torch.models import trained

STORES = Path(os.environ["HOCKET_TEST_STORE"])
_groups = count()

KINDS = ("float32 7", "float64 3000", "torch.int32 1", "bfloat16 5000", "AVG torch.float16 7", "BAND torch.int64 7")
"""Ends of the names of those functions that are called of many alike."""


@contextmanager
def default_group(backend: str = "hocket") -> Iterator[dist.ProcessGroup]:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = STORES / str(next(_groups))
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size)
    yield dist.group.WORLD
    dist.barrier()
    dist.destroy_process_group()


def nodes_of(group: dist.ProcessGroup) -> tuple[tuple[int, ...], ...] | None:
    """Of a group of hocket's; None where it falls back."""
    calls = group._calls  # type: ignore[attr-defined]
    found: tuple[tuple[int, ...], ...] | None = None if calls is None else calls.comm.nodes
    return found


def begun() -> None:
    """Where the program has begun MPI, nobody need ask for it."""
    import_module("mpi4py.MPI")
    del os.environ["HOCKET_TORCH_MPI"]


def miscounted() -> None:
    """What is wrong with the nodes of one rank, all raise."""
    given = os.environ["HOCKET_NODES"]
    with mock.patch.dict(os.environ, HOCKET_NODES="1" if os.environ["RANK"] == "1" else given):
        said = raised(lambda: default_group().__enter__())
    assert "rank 1 cannot take part: HOCKET_NODES=1 does not say where each of" in said, said


def unasked() -> None:
    """Where one rank may not begin MPI, none does, and each says what would let it."""
    with mock.patch.dict(os.environ, HOCKET_STRICT="0"):
        if os.environ["RANK"] == "1":
            os.environ["HOCKET_TORCH_MPI"] = ""
        with default_group() as group:
            assert nodes_of(group) is None
            assert "cannot go over MPI: rank 1 has no HOCKET_TORCH_MPI=1" in group._declined
    assert "mpi4py.MPI" not in sys.modules


def lacks() -> None:
    """Where one rank has no mpi4py, none goes over MPI, and each says why; MPI has not begun anywhere."""
    if os.environ["RANK"] == "1":
        sys.modules["mpi4py"] = None  # type: ignore[assignment]
    with mock.patch.dict(os.environ, HOCKET_STRICT="0"), default_group() as group:
        assert nodes_of(group) is None
        x = torch.full((3,), float(group.rank()))
        with mock.patch.dict(os.environ, HOCKET_STRICT="1"):
            assert "cannot go over MPI: rank 1 has no mpi4py" in raised(lambda: dist.all_reduce(x))
        dist.all_reduce(x)
        assert x.tolist() == [sum(range(group.size()))] * 3
    assert "mpi4py.MPI" not in sys.modules
    if os.environ["RANK"] == "1":
        del sys.modules["mpi4py"]


def follows() -> None:
    """Some ranks do not go over MPI before all have."""
    with default_group("gloo") as group:
        ends = [0, group.size() - 1]
        made = dist.new_group(ends, backend="hocket")
        if group.rank() in ends:
            assert nodes_of(made) is None
            assert "all ranks of MPI's has to do so first" in made._declined


def functions() -> None:
    """What Gloo comes to, now and later, of all ranks."""
    with default_group() as ours:
        plain = dist.new_group(backend="gloo")
        assert len(nodes_of(ours) or ()) > 1
        for name, function in all_functions():
            if name[-1].isdigit() and not name.endswith(KINDS):
                continue
            expected = finished(function(plain, False))
            for later in (False, True):
                for a, b in zip(finished(function(ours, later)), expected, strict=True):
                    assert torch.equal(a, b), (name, later, a, b)


def fails() -> None:
    """What MPI raises where a group is made, torch's error tells; the other groups go on."""
    with default_group() as world:
        mpi = import_module("mpi4py.MPI")
        with mock.patch("hocket.runtime.nodes.part", side_effect=mpi.Exception(mpi.ERR_NO_MEM)):
            said = raised(lambda: dist.new_group(list(range(world.size())), backend="hocket"))
        assert "error[bootstrap]: MPI failed: Exception: " in said, said
        x = torch.ones(3)
        dist.all_reduce(x)
        assert (x == world.size()).all()


def groups() -> None:
    """Every two ranks, and all again, by node or across, with several calls in flight."""
    with default_group() as world:
        rank, size = world.rank(), world.size()
        node_of = {r: number for number, node in enumerate(nodes_of(world) or ()) for r in node}
        assert len(set(node_of.values())) > 1
        for ranks in [*combinations(range(size), 2), range(size)]:
            group = dist.new_group(list(ranks))
            if rank not in ranks:
                continue
            assert len(nodes_of(group) or ()) == len({node_of[r] for r in ranks})
            flying = []
            for n in (3, 100_003):
                x = torch.full((n,), float(rank))
                flying.append((x, dist.all_reduce(x, group=group, async_op=True)))
            for x, work in flying:
                work.wait()
                assert (x == sum(ranks)).all()
            dist.destroy_process_group(group)


def trains() -> None:
    """Steps of DDP come to the same weights on all ranks, as on Gloo, with and without ``share_gradients``."""
    found = {}
    for name, backend in ("gloo", "gloo"), ("hocket", "hocket"), ("shared", "hocket"):
        with default_group(backend):
            torch.manual_seed(dist.get_rank())  # DDP makes them equal
            model = DistributedDataParallel(
                torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16))
            )
            if name == "shared":
                hocket.torch.share_gradients(model)
            weights = torch.cat([each.flatten() for each in trained(model)[3:]])  # behind the losses
            everywhere = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
            dist.all_gather(everywhere, weights)
            assert all(torch.equal(each, weights) for each in everywhere)
            found[name] = weights
    for weights in found.values():
        torch.testing.assert_close(weights, found["gloo"])


def raises() -> None:
    """Once hocket has begun MPI, rank 0 raises, while the others compute."""
    with default_group() as group:
        if group.rank() == 0:
            raise KeyError("wanted")
        time.sleep(600)


def killed() -> None:
    """The last rank is ended in a call: each other raises, says so in a file, and ends without MPI, which would wait.

    The launcher need not pass on what is printed then.
    """
    with default_group() as group:
        rank, last = group.rank(), group.size() - 1
        x = torch.ones(100_000)
        dist.all_reduce(x)
        dist.barrier()
        if rank == last:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
        begun = time.monotonic()
        try:
            while True:
                dist.all_reduce(x)
        except dist.DistBackendError as error:
            said = f"{time.monotonic() - begun - 0.2:.2f} {error}"
        except BaseException:
            said = traceback.format_exc()
        (STORES / f"new{rank}").write_text(said)
        (STORES / f"new{rank}").rename(STORES / f"knew{rank}")  # whole, or not there
        while len(list(STORES.glob("knew*"))) < last and time.monotonic() < begun + 30:
            time.sleep(0.01)
        os._exit(0)


if __name__ == "__main__":
    try:
        for job in sys.argv[1:]:
            globals()[job]()
    except BaseException as error:
        if error.args == ("wanted",):
            raise
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # the others wait for this rank
    print("right", flush=True)
