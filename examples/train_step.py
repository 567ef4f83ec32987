"""Data-parallel training without a framework: each rank has its share of the data, gradients are summed by hocket.

hocket launch -n 4 examples/train_step.py
"""

from __future__ import annotations

import numpy as np

import hocket

TRUE_WEIGHTS = np.linspace(-1.0, 1.0, 64)


def main() -> None:
    with hocket.init() as comm:
        rng = np.random.default_rng(comm.rank)
        features = rng.standard_normal((500, len(TRUE_WEIGHTS)))
        targets = features @ TRUE_WEIGHTS
        weights = np.zeros_like(TRUE_WEIGHTS)
        for _ in range(100):
            gradient = features.T @ (features @ weights - targets) / len(targets)
            comm.all_reduce(gradient)  # in place: the sum over all ranks
            weights -= 0.5 * gradient / comm.size
        error = float(np.abs(weights - TRUE_WEIGHTS).max())
        assert error < 1e-6, error
        # All ranks hold the same weights, to the bit.
        assert np.array_equal(comm.all_reduce(weights.copy(), op="max"), weights)
        if comm.rank == 0:
            print(f"ranks: {comm.size}, largest error: {error:.1e}")


if __name__ == "__main__":
    main()
