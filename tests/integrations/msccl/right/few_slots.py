"""A ring with more chunks in flight than a connection has slots."""

import sys

from msccl.language import *
from msccl.language.collectives import AllReduce
from msccl.topologies import *

chunks, protocol = int(sys.argv[1]), sys.argv[2]

with MSCCLProgram("slots", fully_connected(4), AllReduce(4, chunks, True), 1, protocol):
    for index in range(chunks):
        c = chunk(index % 4, Buffer.input, index)
        for step in range(1, 4):
            c = chunk((index + step) % 4, Buffer.input, index).reduce(c)
        for step in range(4, 7):
            c = c.copy((index + step) % 4, Buffer.input, index)
    XML()
    assert Check()
