"""The files that ranks share: that of a meeting, and the arena of each.

They have no name, so nothing can be left behind, and only their user's processes can open them. A memfd, sealed so that
nobody can shrink it under our feet. Where there is none or a sandbox forbids it, a file in /dev/shm, else in the
temporary directory: without a name from the start (O_TMPFILE) or, where the file system cannot do that, unlinked as
soon as it is open. Its descriptor is what travels (bootstrap.py). A memfd has its full size at once, and only what is
used takes memory; a file grows as it is used, since no file system on a disk allows one of that size.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import chain
from pathlib import Path

from hocket import _native
from hocket.errors import BootstrapFailed

_NO_MEMFD = (errno.ENOSYS, errno.EPERM, errno.EACCES)  # an old kernel, or a sandbox
_NO_TMPFILE = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)  # a file system, or an old kernel


def create(ranks: int, stamp: str, *, on_several_nodes: bool = False) -> int:
    """A new file for so many ranks, with memory for what they need to begin; ``stamp`` is what ``check`` asks for.

    Returns its descriptor. Raises BootstrapFailed.
    """

    def prepare(descriptor: int) -> None:
        failed = _native.reserve_control(descriptor, ranks, on_several_nodes)
        if failed:
            raise OSError(failed, os.strerror(failed))
        os.pwrite(descriptor, stamp.encode(), _native.STAMP)

    return _create(prepare)


def create_arena() -> int:
    """A new file without memory, for what a process lends to others. Returns its descriptor. Raises BootstrapFailed."""
    return _create(lambda _: None)


def _create(prepare: Callable[[int], None]) -> int:
    refused: list[str] = []
    for directory in chain([None], _directories()):
        try:
            with ExitStack() as opened:
                descriptor = _memfd(opened) if directory is None else _file(directory, opened)
                prepare(descriptor)
                opened.pop_all()
                return descriptor
        except OSError as error:
            if directory is None and error.errno not in _NO_MEMFD:
                raise _none(f"{error.strerror}", error) from error
            refused.append(f"{directory or 'memfd_create'}: {error.strerror}")
            last = error
    raise _none("; ".join(refused), last) from last


def check(descriptor: int, stamp: str = "") -> None:
    """Raise BootstrapFailed if this is not the file that a rank of the same meeting created: its arena has no stamp."""
    if not ours(descriptor) or os.pread(descriptor, len(stamp), _native.STAMP) != stamp.encode():
        raise BootstrapFailed("what rank 0 sent is not the shared memory of this meeting")


def ours(descriptor: int) -> bool:
    """Whether this can be memory of a process of this user."""
    found = os.fstat(descriptor)
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()


def _memfd(opened: ExitStack) -> int:
    if not hasattr(os, "memfd_create"):
        raise OSError(errno.ENOSYS, "this Python was built without it")
    descriptor = os.memfd_create("hocket", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    opened.callback(os.close, descriptor)
    os.fchmod(descriptor, 0o600)  # it is made open to all, only nobody else finds it
    os.ftruncate(descriptor, _native.FILE_BYTES)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return descriptor


def _directories() -> Iterator[Path]:
    yield Path("/dev/shm")
    with suppress(FileNotFoundError):  # there is none that can be written
        yield Path(tempfile.gettempdir())


def _file(directory: Path, opened: ExitStack) -> int:
    flags = os.O_RDWR | os.O_EXCL | os.O_CLOEXEC
    try:
        descriptor = os.open(directory, flags | os.O_TMPFILE, 0o600)
        opened.callback(os.close, descriptor)
    except OSError as error:
        if error.errno not in _NO_TMPFILE or not directory.is_dir():
            raise
        path = directory / f"hocket-{secrets.token_hex(16)}"
        descriptor = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        opened.callback(os.close, descriptor)
        path.unlink()
    return descriptor


def _none(why: str, last: OSError) -> BootstrapFailed:
    helps = {
        errno.EFBIG: "a limit on the size of files (ulimit -f) must be lifted",
        errno.EMFILE: "a limit on open files (ulimit -n) must be raised",
        errno.ENOSPC: "make room in /dev/shm, or set TMPDIR to a directory with room",
    }
    return BootstrapFailed(f"there is no shared memory: {why}", helps.get(last.errno or 0))
