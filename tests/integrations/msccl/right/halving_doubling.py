"""Recursive halving and doubling, with references to half of what is left."""

import sys

from msccl.language import *
from msccl.language.collectives import AllReduce
from msccl.topologies import *

size, instances = map(int, sys.argv[1:])

with MSCCLProgram("halving_doubling", hub_and_spoke(size), AllReduce(size, size, True), instances):
    distance = size // 2
    while distance:
        gathered = [chunk(r, Buffer.input, r // (2 * distance) * 2 * distance, 2 * distance) for r in range(size)]
        halves = [c.split(2) for c in gathered]
        for r in range(size):
            peer = r ^ distance
            half = 1 if r & distance else 0
            halves[peer][half].copy(r, "incoming", halves[r][half].index)
        for r in range(size):
            half = halves[r][1 if r & distance else 0]
            half.reduce(chunk(r, "incoming", half.index, half.size))
        distance //= 2
    distance = 1
    while distance < size:
        for r in range(size):
            mine = chunk(r, Buffer.input, r // distance * distance, distance)
            mine.copy(r ^ distance, Buffer.input, mine.index)
        distance *= 2
    XML()
    assert Check()
