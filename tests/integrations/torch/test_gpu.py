"""Tensors on a GPU beside those of the CPU. NCCL wants a GPU for each rank, so here it has one rank."""

from __future__ import annotations

import pytest

from tests.integrations.torch.launch import run

torch = pytest.importorskip("torch", reason="torch is not installed")

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU for torch")


@pytest.mark.parametrize(
    ("backend", "ranks", "env"),
    [
        ("hocket", 1, {}),
        ("cpu:gloo,cuda:nccl", 1, {"HOCKET": "1"}),
        ("cpu:gloo,cuda:gloo", 2, {"HOCKET": "1"}),
        ("cpu:gloo,cuda:gloo", 4, {"HOCKET": "1"}),
    ],
)
def test_tensors_on_a_gpu(backend: str, ranks: int, env: dict[str, str]) -> None:
    for rank, said in enumerate(run(f"on_gpu:{backend}", ranks, env={**env, "HOCKET_LOG": "info"})):
        assert ("tensors on cuda" in said) == (rank == 0)
        assert f"hocket: rank {rank}: all_reduce goes to torch's backend: hocket works in the memory of the CPU" in said
