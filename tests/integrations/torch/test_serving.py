"""hocket in the place of the kernels of vLLM and SGLang for tensor parallelism on CPUs, with stand-ins for both."""

from __future__ import annotations

import pytest

from tests.integrations.torch.launch import run

torch = pytest.importorskip("torch", reason="torch is not installed")


@pytest.mark.parametrize("ranks", [2, 4])
def test_vllm(ranks: int) -> None:
    for said in run("vllm", ranks, env={"HOCKET": "1"}):
        assert "runs on hocket.torch.serving" in said


def test_vllm_compiles() -> None:
    run("vllm_compiled", env={"HOCKET": "1", "HOCKET_STRICT": "1"})


def test_other_versions_of_vllm() -> None:
    (said,) = run("other_vllms", 1, env={"HOCKET": "1"})
    unknown = "hocket does not know vLLM 99.1: "
    assert unknown + "it has no vllm.distributed.device_communicators.cpu_communicator._CPUSHMDistributed" in said
    assert unknown + "its _CPUSHMDistributed has also reduce_scatter" in said
    assert "with VLLM_PLUGINS set to others" in said


def test_sglang() -> None:
    for said in run("sglang", env={"HOCKET": "1", "HOCKET_STRICT": "1"}):
        assert "hocket does not know SGLang 99.1: it has no sglang.srt.distributed.parallel_state.is_shm_" in said
