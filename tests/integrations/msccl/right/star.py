"""One reference that is added to again and again: reduce() keeps it up to date."""

from msccl.language import *
from msccl.language.collectives import AllReduce
from msccl.topologies import *

size = 5
topology = star(size)
assert sorted(topology.destinations(0)) == [1, 2, 3, 4]
assert list(topology.sources(3)) == [0]

with MSCCLProgram("star", topology, AllReduce(size, 1, inplace=False), 1) as program:
    total = chunk(0, Buffer.input, 0).copy(0, Buffer.output, 0)
    for r in range(1, size):
        assert total.reduce(chunk(r, Buffer.input, 0)) is total
    for r in range(1, size):
        total.copy(r, Buffer.output, 0)
    assert len(program.buffers[3][Buffer.output][0].chunks) == size
    assert Check()
    XML()
