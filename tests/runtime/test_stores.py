"""Ranks that meet through a store: several meetings in one, ranks that cannot share memory, stores of torch."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
import pytest

import hocket
from hocket import Communicator
from hocket.errors import BootstrapFailed, InvalidArgument, PeerFailed
from hocket.runtime import stores


class Files:
    """A store in a directory, for processes and threads."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def _path(self, key: str) -> Path:
        return self.directory / key.replace("/", "_")

    def set(self, key: str, value: str) -> None:
        temporary = self.directory / f".{secrets.token_hex(8)}"
        temporary.write_text(value)
        temporary.rename(self._path(key))

    def get(self, key: str) -> bytes:
        return self._path(key).read_bytes()

    def check(self, keys: list[str]) -> bool:
        return all(self._path(key).exists() for key in keys)


def reversed_rank(comm: Communicator, directory: Path) -> list[list[int]]:
    """Ranks of a store need not be those of the launcher; meetings of three stores' users come in different orders."""
    everyone, pairs = Files(directory / "all"), Files(directory / f"pair{comm.rank // 2}")
    found = []
    for store, rank, size in (
        (everyone, comm.size - 1 - comm.rank, comm.size),
        *([(pairs, comm.rank % 2, 2)] * (2 if comm.rank < 2 else 3)),
        (everyone, comm.size - 1 - comm.rank, comm.size),
    ):
        with hocket.init(rank=rank, size=size, store=store) as other:
            joined = other.all_gather(np.array(comm.rank))
            found.append([other.rank, *joined.tolist()])
    return found


def test_several_meetings_in_one_store(tmp_path: Path) -> None:
    for name in ("all", "pair0", "pair1"):
        (tmp_path / name).mkdir()
    found = hocket.spawn(reversed_rank, 4, (tmp_path,))
    for rank, seen in enumerate(found):
        everyone = [3 - rank, 3, 2, 1, 0]
        pair = [rank % 2, rank // 2 * 2, rank // 2 * 2 + 1]
        assert seen == [everyone, *[pair] * (2 if rank < 2 else 3), everyone]
    keys = {path.name for path in (tmp_path / "all").iterdir()}
    assert all(key.startswith("hocket_") for key in keys)


def test_without_a_launcher_and_of_one(tmp_path: Path) -> None:
    code = """
import sys, hocket, numpy
from pathlib import Path
from tests.runtime.test_stores import Files
with hocket.init(rank=int(sys.argv[1]), size=2, store=Files(Path(sys.argv[2]))) as comm:
    print(comm.all_reduce(numpy.ones(2)))
"""
    words = [sys.executable, "-c", code]
    ranks = [subprocess.Popen([*words, str(rank), str(tmp_path)], stdout=subprocess.PIPE, text=True) for rank in (0, 1)]
    assert [rank.communicate(timeout=60)[0] for rank in ranks] == ["[2. 2.]\n"] * 2
    (tmp_path / "alone").mkdir()
    with hocket.init(rank=0, size=1, store=Files(tmp_path / "alone")) as comm:
        assert comm.size == 1


class Notifying:
    """A store of threads that can wait. ``waited``: whether some thread did."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.changed = threading.Condition()
        self.waited = threading.Event()

    def set(self, key: str, value: str) -> None:
        if key == "hocket/0/terms":
            assert self.waited.wait(20)  # as others wait for them
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def get(self, key: str) -> str:
        return self.values[key]

    def check(self, keys: list[str]) -> bool:
        return self.values.keys() >= set(keys)

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        self.waited.set()
        with self.changed:
            if not self.changed.wait_for(lambda: self.check(keys), timeout.total_seconds()):
                raise RuntimeError("wait timeout")


def met(
    store: stores.Store,
    size: int,
    timeout: float = 20.0,
    change: Callable[[int], dict[str, object]] = lambda _: {},
    pause: Callable[[float], object] = lambda seconds: threading.Event().wait(seconds),
) -> list[Any]:
    """What each of some threads gets that meet in a store: a token or an error. ``change``: who they say they are."""
    lock = threading.Lock()

    def one(rank: int) -> object:
        class Posing:
            """A store that says of this rank what it is told to."""

            get, check = store.get, store.check

            def set(self, key: str, value: str) -> None:
                if key == f"hocket/0/{rank}":
                    value = json.dumps(json.loads(value) | change(rank))
                with lock:
                    store.set(key, value)

            def __getattr__(self, name: str) -> Any:
                return getattr(store, name)  # wait, if it can

        try:
            seat = stores.Seat(Posing(), rank, size, timeout, lambda seconds: pause(seconds) and None)
            return stores.place(seat, "p").token
        except BootstrapFailed as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))


@pytest.mark.parametrize(
    ("field", "ranks", "message", "helps"),
    [
        ("machine", {2}, "rank 0 and rank 2 are on different machines", "start all on one machine"),
        ("machine", {1, 2}, "rank 0 and ranks 1, 2 are on different machines", "start all on one machine"),
        ("machine", {0}, "rank 0 and ranks 1, 2 are on different machines", "start all on one machine"),
        ("network", {1}, "rank 0 and rank 1 are in different network namespaces", "containers must share"),
        ("user", {1}, "rank 0 and rank 1 are of different users", "one user only"),
        ("node", {1}, "rank 0 and rank 1 are told not to share memory", ""),
        ("size", {1}, "rank 0 and rank 1 were told different numbers of ranks", ""),
        ("protocol", {1}, "rank 0 and rank 1 run different versions of hocket", ""),
    ],
)
def test_ranks_that_cannot_share_memory(tmp_path: Path, field: str, ranks: set[int], message: str, helps: str) -> None:
    found = met(Files(tmp_path), 3, change=lambda rank: {field: "another"} if rank in ranks else {})
    assert [str(error) for error in found] == [str(found[0])] * 3
    assert found[0].reason == message
    assert helps in (found[0].help or "")


def test_a_store_that_can_wait_is_not_polled() -> None:
    pauses: list[float] = []
    found = met(Notifying(), 3, pause=pauses.append)
    assert isinstance(found[0], str)
    assert found == [found[0]] * 3
    assert pauses == []


def test_a_store_that_waits_in_vain_is_polled() -> None:
    class Deaf(Notifying):
        def check(self, keys: list[str]) -> bool:
            return "hocket/0/1" not in keys and super().check(keys)

    def ended(_: float) -> None:
        raise BootstrapFailed("rank 1 ended")

    assert [error.reason for error in met(Deaf(), 2, pause=ended)] == ["rank 1 ended"] * 2
    found = met(Deaf(), 2, timeout=0.1)
    assert {error.reason for error in found} == {"not all of the 2 ranks were here after 0.1 s: 1 not seen"}


def test_a_store_that_waits_otherwise_is_polled(tmp_path: Path) -> None:
    class Other(Files):
        def wait(self) -> None:
            """Not that of torch."""

    found = met(Other(tmp_path), 2)
    assert isinstance(found[0], str)
    assert found[0] == found[1]


def test_who_is_missing_is_named_by_every_rank(tmp_path: Path) -> None:
    class Deaf(Files):
        def check(self, keys: list[str]) -> bool:
            return "hocket/0/2" not in keys and super().check(keys)

    found = met(Deaf(tmp_path), 3, timeout=0.3)
    for error in found[:2]:
        assert error.reason == "not all of the 3 ranks were here after 0.3 s: 2 not seen"


def test_a_rank_that_rank_0_was_not_told_of(tmp_path: Path) -> None:
    found = met(Files(tmp_path), 2)
    assert found[0] == found[1]
    with pytest.raises(BootstrapFailed, match="rank 2 was told of 3 ranks, rank 0 of 2"):
        stores.place(stores.Seat(Files(tmp_path), 2, 3, 20.0, lambda _: None), "p")


def test_a_rank_that_does_not_know_its_node(tmp_path: Path) -> None:
    def place(rank: int) -> BootstrapFailed:
        node = BootstrapFailed("it is wrong", "say it so") if rank == 1 else ""
        with pytest.raises(BootstrapFailed) as error:
            stores.place(stores.Seat(Files(tmp_path), rank, 3, 20.0, time.sleep), "p", node)
        return error.value

    with ThreadPoolExecutor(3) as pool:
        for found in pool.map(place, range(3)):
            assert type(found) is BootstrapFailed  # not CannotShare, upon which others would go over MPI
            assert (found.reason, found.help) == ("rank 1 cannot take part: it is wrong", "say it so")


def test_a_store_that_fails(tmp_path: Path) -> None:
    with pytest.raises(BootstrapFailed, match="the store failed: FileNotFoundError: "):
        hocket.init(rank=0, size=2, store=Files(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 0}, "rank, size and store belong together"),
        ({"rank": 0, "size": 2}, "rank, size and store belong together"),
        ({"store": "s", "size": 2}, "rank, size and store belong together"),
        ({"store": "s", "rank": 2, "size": 2}, r"rank must be in \[0, 2\), not 2"),
        ({"store": "s", "rank": -1, "size": 2}, r"rank must be in \[0, 2\), not -1"),
        ({"store": "s", "rank": 0.5, "size": 2}, "belong together"),
    ],
)
def test_arguments_that_make_no_sense(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        hocket.init(**arguments)


def absent(comm: Communicator, directory: Path) -> str:
    if comm.rank == 1:
        return "returned"
    with pytest.raises(PeerFailed) as error:
        hocket.init(rank=comm.rank, size=3, store=Files(directory))
    return error.value.reason


def test_a_launcher_that_says_a_rank_has_ended_is_heard(tmp_path: Path) -> None:
    told = "returned before the ranks had met"
    assert hocket.spawn(absent, 3, (tmp_path,)) == [told, "returned", told]


APART = """
import os, sys, hocket
from pathlib import Path
from tests.runtime.test_stores import Files
os.chdir(sys.argv[2])
if sys.argv[3] == "user" and sys.argv[1] == "1":
    os.setuid(65534)
try:
    hocket.init(rank=int(sys.argv[1]), size=2, store=Files(Path()), timeout=30)
except hocket.errors.BootstrapFailed as error:
    print(error.reason)
"""


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("network", "rank 0 and rank 1 are in different network namespaces"),
        ("user", "rank 0 and rank 1 are of different users"),
    ],
)
def test_ranks_that_really_are_apart(tmp_path: Path, what: str, message: str) -> None:
    if os.geteuid():
        pytest.skip("only root can be another user or leave the network namespace")
    words = [sys.executable, "-c", APART]
    enter = ["unshare", "--net"] if what == "network" else []
    if enter and (not which("unshare") or subprocess.run([*enter, "true"], check=False).returncode):
        pytest.skip("network namespaces cannot be made here")
    tmp_path.chmod(0o777)
    ranks = [
        subprocess.Popen(
            [*(enter if rank else []), *words, str(rank), str(tmp_path), what], stdout=subprocess.PIPE, text=True
        )
        for rank in (0, 1)
    ]
    assert [rank.communicate(timeout=60)[0] for rank in ranks] == [message + "\n"] * 2


def torch_store(kind: str, directory: Path, port: int, rank: int) -> stores.Store:
    distributed = pytest.importorskip("torch.distributed", reason="torch is not installed")
    if kind == "file":
        return distributed.FileStore(str(directory / "store"), 2)
    return distributed.TCPStore("127.0.0.1", port, 2, rank == 0)


def by_torch(comm: Communicator, kind: str, directory: Path, port: int) -> list[float]:
    store = torch_store(kind, directory, port, comm.rank)
    with hocket.init(rank=comm.rank, size=2, store=store) as a, hocket.init(rank=comm.rank, size=2, store=store) as b:
        found = a.all_reduce(b.all_reduce(np.ones(2))).tolist()
    comm.barrier()  # the store is rank 0's
    return found


@pytest.mark.parametrize("kind", ["file", "tcp"])
def test_stores_of_torch(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("torch.distributed", reason="torch is not installed")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert hocket.spawn(by_torch, 2, (kind, tmp_path, port)) == [[4.0, 4.0]] * 2
