"""More than 32 ways through one connection, each of which is received and sent on at once."""

from msccl.language import *
from msccl.language.collectives import AllGather
from msccl.topologies import *

fan = 40
size = fan + 2

with MSCCLProgram("fan", fully_connected(size), AllGather(size, 1, True), 1):
    for r in range(2, size):
        c = chunk(r, Buffer.output, r).copy(0).copy(1)
        for other in range(2, size):
            if other != r:
                c.copy(other)
    for r in (0, 1):
        for other in range(size):
            if other != r:
                chunk(r, Buffer.output, r).copy(other)
    assert Check()
