"""The arms of a tuner: all of a key leave the bits of the static policy, by the reference, and say what they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hocket.ir.geometry import check_size
from hocket.semantics import reference
from hocket.tuner.arms import DEFAULT, MOST, Arm, Key, candidates
from hocket.tuning import KINDS, NAMED, Call, choose

UNIT = 48  # elements


@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
@pytest.mark.parametrize(
    ("name", "op"),
    [(name, op) for name in NAMED for op in ("sum", "max", "prod") if op == "sum" or KINDS[name].combines],
)
def test_arms_leave_the_same_bits(name: str, ranks: int, op: str) -> None:
    random = np.random.default_rng(ranks)
    for size in (16, 1 << 20):
        call = Call(name, ranks, size, root=ranks - 1 if name in ("broadcast", "reduce", "gather", "scatter") else 0)
        key = Key.of(call, "float32", op)
        assert key is not None
        default = choose(call).compile()
        collective = default.collective
        given = [
            np.concatenate([random.standard_normal(collective.input_blocks(r) * UNIT - 3), [0.0, -0.0, np.nan]])
            if collective.input_blocks(r)
            else np.zeros(0)
            for r in range(ranks)
        ]
        arrays = [array.astype(np.float32) for array in given]
        wanted = reference(default, arrays, op)
        arms = candidates(key, call)
        assert arms[0] == DEFAULT
        assert len(set(map(str, arms))) == len(arms) <= MOST
        for arm in arms[1:]:
            schedule = arm.schedule(call)
            if schedule is None:
                continue
            check_size(schedule.name, schedule.collective.chunks, schedule.narrowings, UNIT, 4)
            for found, expected in zip(reference(schedule, arrays, op), wanted, strict=True):
                assert found.tobytes() == expected.tobytes(), f"{arm} of {key}"


def test_integers_have_more_arms_than_floats() -> None:
    call = Call("all_reduce", 4, 1 << 10)
    keys = [Key.of(call, kind, "sum") for kind in ("int32", "float32")]
    exact, floats = (candidates(key, call) for key in keys if key is not None)
    assert len(exact) > len(floats)
    assert set(floats) <= set(exact)


def test_what_is_not_tuned() -> None:
    call = Call("all_reduce", 2, 1 << 20)
    assert Key.of(call, "float32", "sum") is not None
    for other in (
        replace(call, size=None),
        replace(call, size=0),
        replace(call, uneven=True),
        replace(call, threads=4),
        replace(call, ranks=1),
    ):
        assert Key.of(other, "float32", "sum") is None


def test_keys_and_arms_have_names() -> None:
    call = Call("reduce", 4, 3 << 10, root=2, nodes=(0, 0, 1, 1), reproducible="rank-order", oversubscribed=True)
    key = Key.of(call, "bfloat16", "avg")
    assert str(key) == "reduce 2 KB 4 ranks bfloat16 avg root 2 2 nodes rank-order oversubscribed"
    assert str(Key.of(Call("all_to_all", 2, 64), "int8", "sum")) == "all_to_all 64 B 2 ranks int8"
    assert str(DEFAULT) == "default"
    arm = Arm("hocket.algorithms.ring:all_reduce", (("ranks", 4), ("channels", 2)), 1 << 14, zero_copy=False)
    assert str(arm) == "ring:all_reduce ranks=4 channels=2 tile=16 KB slots"
