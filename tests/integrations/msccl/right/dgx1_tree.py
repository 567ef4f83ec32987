"""A tree along the NVLinks of a DGX-1, and what a topology can be asked."""

from msccl.language import *
from msccl.language.collectives import AllReduce
from msccl.topologies.nvidia import *

topology = dgx1()
assert topology.num_nodes() == 8
assert topology.link(0, 4) == 2
assert topology.link(0, 5) == 0
assert all(sum(topology.link(a, b) for a in topology.nodes()) == 6 for b in topology.nodes())

parents = {1: 0, 4: 0, 2: 0, 3: 1, 5: 4, 6: 2, 7: 3}
order = [7, 6, 5, 3, 2, 4, 1]
with MSCCLProgram("tree", topology, AllReduce(8, 1, True), 4, protocol="LL128", check_xml=False):
    for r in order:
        chunk(parents[r], Buffer.input, 0).reduce(chunk(r, Buffer.input, 0))
    for r in reversed(order):
        chunk(parents[r], Buffer.input, 0).copy(r, Buffer.input, 0)
    XML()
    assert Check()
