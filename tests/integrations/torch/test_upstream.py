"""Some of torch's own tests; ``python -m tests.integrations.torch.upstream`` runs all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integrations.torch.upstream import outcomes

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("expecttest", reason="what torch's tests need is not installed")

SAMPLE = (
    "test_DistributedDataParallelCPU",
    "test_all_gather_coalesced_simple",
    "test_all_reduce_full_group_max",
    "test_all_reduce_sum_async",
    "test_all_to_all_single_unequal_split",
    "test_barrier_timeout_full_group",
    "test_broadcast",
    "test_gather",
    "test_scatter_object_list",
)


def test_a_sample(tmp_path: Path) -> None:
    found = outcomes("hocket", 2, SAMPLE, tmp_path)
    assert [(each.test, each.how, each.why) for each in found] == [(name, "passes", "") for name in SAMPLE]
    assert all(each.ours and not each.falls_back for each in found)
