"""In-place ReduceScatter that adds up in the output, which lies in the input, or brings the sum there."""

import sys

from msccl.language import *
from msccl.language.collectives import ReduceScatter
from msccl.topologies import *

size, chunks, instances = map(int, sys.argv[1:])

with MSCCLProgram("at_home", fully_connected(size), ReduceScatter(size, chunks, inplace=True), instances):
    for r in range(size):
        for c in range(chunks):
            total = chunk(r, Buffer.output, c)
            assert (total.buffer, total.index) == (Buffer.input, r * chunks + c)
            for step in range(1, size):
                total.reduce(chunk((r + step) % size, Buffer.input, r * chunks + c))
    XML()
    assert Check()

with MSCCLProgram("away", fully_connected(size), ReduceScatter(size, chunks, inplace=True), instances):
    for r in range(size):
        c = chunk(r, Buffer.input, r * chunks, chunks)
        for step in range(1, size):
            c = chunk((r + step) % size, Buffer.input, r * chunks, chunks).reduce(c)
        c.copy(r, Buffer.output, 0)  # of r, not of the rank that has the sum
    XML()
    assert Check()
