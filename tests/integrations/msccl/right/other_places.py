"""Sums of chunks that lie in different places on the two ranks, and an overwritten part of what was sent on."""

from msccl.language import *
from msccl.language.collectives import AllReduce
from msccl.topologies import *

with MSCCLProgram("crossed", fully_connected(3), AllReduce(3, 2, inplace=False), 2):
    for index in range(2):
        chunk(0, Buffer.input, index).copy(1, "a", 1 - index)
        chunk(2, Buffer.input, index).copy(1, "a", 3 - index)
    for index in range(2):
        total = chunk(1, "a", 1 - index)
        total.reduce(chunk(1, Buffer.input, index))
        total = chunk(0, Buffer.input, index).copy(0, "b", 5 - index)  # not used: what rank 1 sends overwrites it
        chunk(1, "a", 1 - index).copy(0, "b", 5 - index)
    both = chunk(2, Buffer.input, 0, 2).copy(2, "c", 4)
    for index in range(2):
        chunk(2, "c", 4 + index).reduce(chunk(0, "b", 5 - index))
    both = chunk(2, "c", 4, 2)
    for r in range(3):
        both.copy(r, Buffer.output, 0)
    XML()
    assert Check()
