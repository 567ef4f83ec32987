"""The shared file: a memfd, and what takes its place where there is none. Who can open it; what is left of it."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
import pytest

import hocket
from hocket import Communicator, _native
from hocket.errors import BootstrapFailed, HocketError
from hocket.runtime import segments

Patch = Callable[[Any, str, Any], object]


def refuse_memfd(patch: Patch, number: int = errno.EPERM) -> None:
    def refused(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    patch(os, "memfd_create", refused)


def refuse_unnamed(patch: Patch) -> None:
    real = os.open

    def opened(path: Any, flags: int, *mode: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return real(path, flags, *mode)

    patch(os, "open", opened)


def test_a_memfd_is_sealed_and_nobody_elses() -> None:
    descriptor = segments.create(3, "stamp")
    try:
        segments.check(descriptor, "stamp")
        found = os.fstat(descriptor)
        assert stat.S_IMODE(found.st_mode) == 0o600
        assert found.st_size == _native.FILE_BYTES
        assert found.st_blocks * 512 < 1 << 20
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        assert seals == fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        for size in (0, _native.FILE_BYTES + 1):
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM, errno.EACCES])
@pytest.mark.parametrize("unnamed", [True, False])
def test_a_file_takes_its_place(monkeypatch: pytest.MonkeyPatch, number: int, unnamed: bool) -> None:
    refuse_memfd(monkeypatch.setattr, number)
    if not unnamed:
        refuse_unnamed(monkeypatch.setattr)
    before = set(Path("/dev/shm").iterdir())
    descriptor = segments.create(3, "stamp")
    try:
        segments.check(descriptor, "stamp")
        found = os.fstat(descriptor)
        assert stat.S_IMODE(found.st_mode) == 0o600
        assert found.st_nlink == 0
        assert Path(f"/proc/self/fd/{descriptor}").readlink().parent == Path("/dev/shm")
        assert not os.get_inheritable(descriptor)
        assert set(Path("/dev/shm").iterdir()) <= before
    finally:
        os.close(descriptor)


def test_a_python_without_memfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    os.close(segments.create(1, ""))


def test_what_is_not_the_memory_of_the_meeting_is_not_mapped(tmp_path: Path) -> None:
    descriptor = segments.create(2, "one")
    reading, writing = os.pipe()
    (tmp_path / "empty").touch()
    empty = os.open(tmp_path / "empty", os.O_RDWR)
    try:
        for other, stamp in ((descriptor, "two"), (reading, "one"), (empty, "one")):
            with pytest.raises(BootstrapFailed, match="is not the shared memory of this meeting"):
                segments.check(other, stamp)
        if os.geteuid() == 0:
            os.fchown(descriptor, 65534, 65534)
            with pytest.raises(BootstrapFailed, match="is not the shared memory of this meeting"):
                segments.check(descriptor, "one")
    finally:
        for other in (descriptor, reading, writing, empty):
            os.close(other)


def test_no_directory_will_do(monkeypatch: pytest.MonkeyPatch, golden: Callable[[Path, str], None]) -> None:
    refuse_memfd(monkeypatch.setattr)
    directories = [Path("/nowhere"), Path("/dev/null")]
    monkeypatch.setattr(segments, "_directories", lambda: iter(directories))
    with pytest.raises(BootstrapFailed) as error:
        segments.create(1, "")
    golden(Path(__file__).parent / "no_memory.err", str(error.value))


def sums(comm: Communicator, sizes: tuple[int, ...], disk: bool = False) -> None:
    """Calls of growing size in a file: on a disk, whose file system allows no file of the memfd's size, or not."""
    refuse_memfd(setattr)
    if disk:
        segments._directories = lambda: iter([Path("/var/tmp")])
    with hocket.init() as other:
        for size in sizes:
            x = np.full(size, comm.rank + 1.0)
            assert (other.all_reduce(x) == comm.size * (comm.size + 1) / 2).all()
        half = other.split(comm.rank % 2)
        assert half is not None
        assert half.all_gather(np.array(comm.rank)).tolist() == list(range(comm.rank % 2, comm.size, 2))


@pytest.mark.parametrize("disk", [False, True], ids=["/dev/shm", "/var/tmp"])
def test_calls_in_a_file(disk: bool) -> None:
    directory = "/var/tmp" if disk else "/dev/shm"
    before = set(Path(directory).iterdir())
    hocket.spawn(sums, 3, ((1, 1000, 300_000), disk))
    assert set(Path(directory).iterdir()) <= before


# ---------------------------------------------------------------------------------------------------------------
# Mounts: /dev/shm that is read-only, absent, full


def mounted(commands: str, code: str, temporary: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a mount namespace after commands of a shell."""
    enter = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    if (
        not which("unshare")
        or subprocess.run(
            [*enter, "mount", "-t", "tmpfs", "none", "/dev/shm"], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("mount namespaces cannot be made here")
    found = subprocess.run(
        [*enter, "sh", "-ec", f'{commands}\nexec "$@"', "sh", sys.executable, "-c", code],
        env=os.environ | {"TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found


READ_ONLY = "mount -t tmpfs -o ro none /dev/shm"
ABSENT = "mount -t tmpfs none /dev; mkdir /dev/pts; mknod /dev/null c 1 3; mknod /dev/urandom c 1 9"


@pytest.mark.parametrize("how", [READ_ONLY, ABSENT], ids=["read-only", "absent"])
def test_no_dev_shm(tmp_path: Path, how: str) -> None:
    """Neither matters to a memfd; without one the temporary directory is used."""
    code = """
import hocket, numpy
from tests.runtime.test_segments import sums
hocket.spawn(lambda comm: comm.all_reduce(numpy.ones(1000)), 2)
hocket.spawn(sums, 2, ((1, 1000, 100_000),))
"""
    mounted(how, code, tmp_path)
    assert not list(tmp_path.iterdir())


def filling(comm: Communicator) -> list[str]:
    """Calls that grow until the memory is full; then a smaller one works."""
    refuse_memfd(setattr)
    with hocket.init() as other:
        found = []
        for size in (1000, 200_000, 1000):
            try:
                assert (other.all_reduce(np.full(size, comm.rank + 1.0)) == 3).all()
                found.append("sum")
            except (MemoryError, HocketError) as error:
                found.append(f"{type(error).__name__}: {error}")
        return found


def test_a_full_memory_is_an_error_on_every_rank_and_no_signal(tmp_path: Path) -> None:
    code = """
import hocket
from tests.runtime.test_segments import filling
for seen in hocket.spawn(filling, 2):
    assert seen[0] == seen[2] == "sum", seen
    assert "no memory for slots" in seen[1] and "No space left on device" in seen[1], seen
    assert seen[1].startswith(("MemoryError", "PeerRefused")), seen
"""
    mounted("mount -t tmpfs -o size=1m none /dev/shm", code, tmp_path)


def test_a_memory_too_small_to_begin(tmp_path: Path) -> None:
    code = """
import hocket
from hocket.errors import BootstrapFailed
from tests.runtime.test_segments import refuse_memfd
def small(comm):
    refuse_memfd(setattr)
    try:
        hocket.init()
    except BootstrapFailed as error:
        return error.reason
for seen in hocket.spawn(small, 3):
    assert seen.endswith("/dev/shm: No space left on device; TMP: No space left on device".replace("TMP", "/mnt")), seen
""".replace("/mnt", str(tmp_path))
    mounted(f"mount -t tmpfs -o size=4k none /dev/shm; mount --bind /dev/shm {tmp_path}", code, tmp_path)


# ---------------------------------------------------------------------------------------------------------------
# Other users


OTHER = """
import os, socket, sys
os.setgid(65534); os.setuid(65534)
for path in sys.argv[1:]:
    try:
        os.open(path, os.O_RDONLY)
    except PermissionError:
        continue
    print("opened", path)
"""


def opened_by_nobody(comm: Communicator, file: bool) -> str:
    if file:
        refuse_memfd(setattr)
    with hocket.init() as other:
        other.all_reduce(np.ones(3))
        own = Path("/proc", str(os.getpid()), "fd")
        paths = [path for path in own.iterdir() if path.exists() and path.stat().st_size >= _native.STAMP]
        assert len(paths) == 5  # of both communicators the memory and the arena of the other rank, and the own arena
        for path in paths:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            os.close(os.open(path, os.O_RDONLY))  # this user can
        found = subprocess.run([sys.executable, "-c", OTHER, *paths], capture_output=True, text=True, check=True)
        other.barrier()
    return found.stdout


@pytest.mark.parametrize("file", [False, True], ids=["memfd", "file"])
def test_another_user_cannot_open_what_is_shared(file: bool) -> None:
    if os.geteuid():
        pytest.skip("only root can be another user")
    assert hocket.spawn(opened_by_nobody, 2, (file,)) == ["", ""]
