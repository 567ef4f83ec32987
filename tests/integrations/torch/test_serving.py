"""hocket in the place of the kernels of vLLM and SGLang for tensor parallelism on CPUs, with stand-ins for both."""

from __future__ import annotations

import pytest

from tests.integrations.torch.launch import run

torch = pytest.importorskip("torch", reason="torch is not installed")


@pytest.mark.parametrize("ranks", [2, 4])
def test_vllm(ranks: int) -> None:
    """Whole numbers come to what they come to on Gloo, and sums that are rounded to the same bits on all ranks."""
    plain, ours = run("vllm", ranks), run("vllm", ranks, env={"HOCKET": "1"})
    alike = set()
    for a, b in zip(plain, ours, strict=True):
        *expected, _ = a.splitlines()
        *found, last = (line for line in b.splitlines() if not line.startswith("hocket: "))
        assert expected[0] == "runs on tests.integrations.torch.servers"
        assert found[0] == "runs on hocket.torch.serving"
        assert found[1:] == expected[1:]
        alike.add(last)
    assert len(alike) == 1


def test_other_versions_of_vllm() -> None:
    (said,) = run("other_vllms", 1, env={"HOCKET": "1"})
    assert (
        "hocket does not know vLLM 99.1: it has no vllm.distributed.device_communicators.cpu_communicator._CPU" in said
    )
    assert "hocket does not know vLLM 99.1: its _CPUSHMDistributed has also reduce_scatter" in said
    assert "without HOCKET=1, or where VLLM_PLUGINS names others only" in said


def test_sglang() -> None:
    for said in run("sglang", env={"HOCKET": "1", "HOCKET_STRICT": "1"}):
        assert "hocket does not know SGLang 99.1: it has no sglang.srt.distributed.parallel_state.is_shm_" in said
