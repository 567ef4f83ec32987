"""In-place AllToAll: what a rank still needs of its own goes to scratch before it is overwritten."""

import sys

from msccl.language import *
from msccl.language.collectives import AllToAll
from msccl.topologies import *

size, instances = map(int, sys.argv[1:])

with MSCCLProgram("swap", fully_connected(size), AllToAll(size, 1, inplace=True), instances):
    for a in range(size):
        for b in range(a + 1, size):
            mine = chunk(a, Buffer.input, b).copy(a, Buffer.scratch)
            chunk(b, Buffer.input, a).copy(a, Buffer.output, b)
            mine.copy(b, Buffer.output, a)
    assert Check()
