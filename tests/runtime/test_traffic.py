"""What calls load and store: what the kernels count is what the schedule says, and what the formulas of YHCCL say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

import hocket
from hocket import Communicator, Program
from hocket.algorithms import all_pairs, chain, direct, dpml, knomial, movement_avoiding, ring
from hocket.ir.traffic import Traffic, traffic

RANKS = (2, 3, 4, 5, 6, 7, 8, 9, 12, 16)
ELEMENTS = (1, 17, 1000, 16 * 5040, 100_003)
"""Of a unit, float32: with remainders for all numbers of ranks, and one that every number of ranks divides."""


@dataclass(frozen=True)
class Entry:
    """A program, and the traffic of all ranks together in units of the larger buffer of one: its ``s``."""

    program: Program
    formula: int
    blocks: int = 1


def entries(p: int) -> list[Entry]:
    """Those that reach the least that private buffers allow (docs/traffic.md)."""
    found = [
        Entry(ring.reduce_scatter(p), 3 * p - 1, p),
        Entry(direct.reduce_scatter(p), 3 * p - 1, p),
        Entry(all_pairs.all_reduce(p), 5 * p - 2),
        Entry(chain.reduce(p), 3 * p - 1),
        Entry(knomial.reduce(p, p), 3 * p - 1),
        Entry(knomial.broadcast(p, p), 2 * p),
        Entry(direct.all_gather(p), 2 * p * p),
        Entry(direct.all_to_all(p), 4 * p - 2, p),
    ]
    for sockets in (1, 2, 3):
        found += [
            Entry(movement_avoiding.reduce_scatter(p, sockets), 3 * p - 1, p),
            Entry(movement_avoiding.reduce(p, sockets), 3 * p - 1),
            Entry(movement_avoiding.all_reduce(p, sockets), 5 * p - 2),
            Entry(dpml.all_reduce(p, sockets), 5 * p - 2),
        ]
    return found
