"""In-place AllGather that takes its chunks from the input, and copies them to where they are anyway."""

import sys

from msccl.language import *
from msccl.language.collectives import AllGather
from msccl.topologies import *

size, chunks, instances = map(int, sys.argv[1:])

with MSCCLProgram("allgather", fully_connected(size), AllGather(size, chunks, inplace=True), instances):
    for r in range(size):
        c = chunk(r, Buffer.input, 0, chunks)
        assert (c.buffer, c.index) == (Buffer.output, r * chunks)
        c = c.copy(r, Buffer.output, r * chunks)  # there already
        for step in range(1, size):
            c = c.copy((r + step) % size)  # no buffer: the same place
    XML()
    assert Check()
