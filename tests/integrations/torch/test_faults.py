"""What goes wrong, and what hocket leaves to torch's backends."""

from __future__ import annotations

import pytest

from tests.integrations.torch.launch import run, start

torch = pytest.importorskip("torch", reason="torch is not installed")

HOCKET = {"HOCKET": "1"}


def test_refusals() -> None:
    run("refusals")


def test_a_rank_that_ends_in_training() -> None:
    said = run("dies", env=HOCKET)[0]
    line = next(line for line in said.splitlines() if " s: " in line)
    assert float(line.split()[0]) < 5
    assert "all_reduce: error[peer-failed]: rank 1 has ended" in line
    assert "this communicator is dead: rank 1 has ended" in said


def test_a_rank_that_does_not_come() -> None:
    late, after = run("times_out", env=HOCKET)
    for text in ("barrier", "0.2"), ("all_reduce", "0.2"), ("barrier", "1"):
        assert "{}: Timed out error[timeout]: waited {}".format(*text) in late
    assert late.count("waited 0.2") == 3
    assert "s for rank 1 in vain" in late
    assert "barrier: error[peer-failed]: rank 1 was waited for in vain" in after


def test_groups_leave_nothing() -> None:
    run("leaves", env=HOCKET)


def test_what_falls_back_is_done_and_said_once() -> None:
    for rank, said in enumerate(run("fall_backs", env={**HOCKET, "HOCKET_LOG": "info"})):
        for text in (
            "all_reduce goes to torch's backend: hocket takes dense tensors, not torch.sparse_coo",
            "send goes to torch's backend: messages between two ranks",
            "recv goes to torch's backend: messages between two ranks",
            "all_reduce goes to torch's backend: hocket does not combine torch.int32 by AVG",
            "all_reduce goes to torch's backend: hocket does not combine torch.float16 by PREMUL_SUM",
            "all_reduce goes to torch's backend: hocket does not combine torch.float32 by PREMUL_SUM",
        ):
            assert said.count(f"hocket: rank {rank}: {text}") == 1, said


def test_ranks_on_two_machines() -> None:
    assert "hocket does nothing here: rank 0 and rank 1 are on different machines" in run("apart", env=HOCKET)[0]
    for said in run("apart", env={**HOCKET, "HOCKET_STRICT": "1"}):
        assert "hocket does no all_reduce here: rank 0 and rank 1 are on different machines" in said


def test_strict() -> None:
    for said in run("strict", env={"HOCKET_STRICT": "1"}):
        assert "send: error[not-accelerated]" in said
        assert "hocket does not combine torch.int32 by AVG" in said
        assert "dense tensors" in said


def test_two_jobs_do_not_meet() -> None:
    jobs = [start("unchanged", env=HOCKET) for _ in range(2)]
    for ranks in jobs:
        for process in ranks:
            said, _ = process.communicate(timeout=120)
            assert process.returncode == 0, said
