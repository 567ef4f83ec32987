"""Machines that are namespaces of one: each has a network with an address on it, a name, a /dev/shm, and cores.

They are joined by a bridge. A launcher starts what it starts on one of them by ``Machines.shell``, in the place of ssh.
``python -m tests.integrations.mpi.machines PREFIX 2+2 COMMAND ...`` runs a job with so many ranks on each, of the MPI
in the environment PREFIX.
"""

from __future__ import annotations

import os
import secrets
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.integrations.mpi.launch import Mpi, kind_of

_SHELL = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
machine=$1; shift
exec taskset -c "$(sed -n "s/^$machine //p" {cores})" ip netns exec {job}-$machine unshare --uts --mount sh -c '
    hostname "$0" && mount -t tmpfs tmpfs /dev/shm && mount --bind {hosts} /etc/hosts &&
    exec sh -c "$1"' "$machine" "$*"
"""
_LAUNCHER = "m0"  # where mpiexec runs, and no rank


@dataclass(frozen=True)
class Machines:
    """``names`` of those that ranks can be on."""

    job: str
    names: tuple[str, ...]
    shell: Path

    def command(
        self, mpi: Mpi, ranks: Sequence[int], variables: Mapping[str, str], program: Sequence[str]
    ) -> list[str]:
        """A job with so many ranks on each of the first machines, in this order."""
        places = ",".join(f"{name}:{count}" for name, count in zip(self.names, ranks, strict=False))
        start = mpi.command(sum(ranks), {**mpi.tcp, **variables})
        if mpi.kind == "openmpi":
            start[1:1] = ["--host", places, "--prtemca", "plm_ssh_agent", str(self.shell)]
            start[1:1] = ["--prtemca", "plm_ssh_no_tree_spawn", "1"]
        else:
            start[1:1] = ["-hosts", places, "-launcher", "ssh", "-launcher-exec", str(self.shell)]
        inside = [*(f"{name}={value}" for name, value in mpi.environment.items() if name != "_"), *start, *program]
        return [str(self.shell), _LAUNCHER, "exec", "env", "-i", *map(shlex.quote, inside)]

    def cut(self, name: str) -> None:
        """Take a machine off the network."""
        _ip("-n", f"{self.job}-bridge", "link", "set", name, "down")


def why_not() -> str | None:
    """Why this machine makes none; None where it does."""
    job = f"hocket-{secrets.token_hex(4)}"
    try:
        with _namespace(job):
            _ip("-n", job, "link", "add", "bridge", "type", "bridge")
            _ip("-n", job, "link", "add", "one", "type", "veth", "peer", "name", "other")
    except FileNotFoundError:
        return "there is no ip: it is part of iproute2"
    except subprocess.CalledProcessError as error:
        return f"no network namespaces: {error.stderr.strip()}"
    return None


@contextmanager
def machines(count: int, folder: Path) -> Iterator[Machines]:
    """So many, until this ends. ``folder``: an empty one, for what they need. Each has cores of its own, or one of them
    where machines are more."""
    job = f"hocket-{secrets.token_hex(4)}"
    names = (_LAUNCHER, *(f"m{number + 1}" for number in range(count)))
    hosts, cores, shell = folder / "hosts", folder / "cores", folder / "shell"
    hosts.write_text("127.0.0.1 localhost\n" + "".join(f"10.77.0.{n + 1} {name}\n" for n, name in enumerate(names)))
    here = sorted(os.sched_getaffinity(0))
    own = {_LAUNCHER: here} | {name: here[n::count] or [here[n % len(here)]] for n, name in enumerate(names[1:])}
    cores.write_text("".join(f"{name} {','.join(map(str, of))}\n" for name, of in own.items()))
    shell.write_text(_SHELL.format(job=job, hosts=hosts, cores=cores))
    shell.chmod(0o755)
    with _all_namespaces([f"{job}-{name}" for name in ("bridge", *names)]):
        bridge = f"{job}-bridge"
        _ip("-n", bridge, "link", "add", "br0", "type", "bridge")
        _ip("-n", bridge, "link", "set", "br0", "up")
        for number, name in enumerate(names):
            inside = f"{job}-{name}"
            _ip("link", "add", "eth0", "netns", inside, "type", "veth", "peer", "name", name, "netns", bridge)
            _ip("-n", bridge, "link", "set", name, "master", "br0", "up")
            _ip("-n", inside, "address", "add", f"10.77.0.{number + 1}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                _ip("-n", inside, "link", "set", device, "up")
        yield Machines(job, names[1:], shell)


@contextmanager
def _all_namespaces(names: Sequence[str]) -> Iterator[None]:
    if not names:
        yield
        return
    with _namespace(names[0]), _all_namespaces(names[1:]):
        yield


@contextmanager
def _namespace(name: str) -> Iterator[None]:
    _ip("netns", "add", name)
    try:
        yield
    finally:
        for process in _ip("netns", "pids", name).split():
            with suppress(ProcessLookupError):
                os.kill(int(process), 9)
        _ip("netns", "delete", name)


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=True).stdout


def main(prefix: str, placement: str, *program: str) -> int:
    ranks = [int(count) for count in placement.split("+")]
    mpi = Mpi(Path(prefix), kind_of(Path(prefix)))
    with tempfile.TemporaryDirectory() as folder, machines(len(ranks), Path(folder)) as on:
        return subprocess.run(on.command(mpi, ranks, {}, program), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
