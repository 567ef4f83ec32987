"""Jobs of torch.distributed: ranks are processes that run a function of jobs.py, started as torchrun starts them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent.parent
ABORTED = "terminate called without an active exception\n"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def start(
    job: str, ranks: int = 2, env: Mapping[str, str] | None = None, options: Sequence[str] = ()
) -> list[subprocess.Popen[str]]:
    """Start the ranks of a job: ``name`` or ``name:argument`` of jobs.py, or a path and its options."""
    command = [job, *options] if job.endswith(".py") else ["-m", "tests.integrations.torch.jobs", job]
    given = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    given.update({"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}, **(env or {}))
    return [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", *command],
            cwd=ROOT,
            env={**given, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]


def run(
    job: str,
    ranks: int = 2,
    env: Mapping[str, str] | None = None,
    timeout: float = 300,
    options: Sequence[str] = (),
    *,
    only_gloo: bool = False,
) -> list[str]:
    """What each rank of a job has printed. All must end well.

    With ``only_gloo`` the end of Python itself may abort them: then threads of Gloo may free tensors (torch 2.13).
    """
    started = start(job, ranks, env, options)
    try:
        said = [process.communicate(timeout=timeout)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    for process, text in zip(started, said, strict=True):
        aborted = only_gloo and process.returncode == -signal.SIGABRT and text.endswith(ABORTED)
        assert process.returncode == 0 or aborted, "\n".join(said)
    return said
