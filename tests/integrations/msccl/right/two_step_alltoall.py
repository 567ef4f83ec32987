"""Two-step AllToAll: within the node to the rank that talks to the peer, then all chunks for a rank at once."""

import sys

from msccl.language import *
from msccl.language.collectives import AllToAll
from msccl.topologies import *

nodes, gpus, instances = map(int, sys.argv[1:])
size = nodes * gpus
topology = distributed_fully_connected(fully_connected(gpus), nodes, 1)

with MSCCLProgram("two_step", topology, AllToAll(size, 1, False), instances):
    for n in range(nodes):
        for m in range(nodes):
            for h in range(gpus):
                relay = n * gpus + h
                for g in range(gpus):
                    c = chunk(n * gpus + g, Buffer.input, m * gpus + h)
                    assert c.get_dst_rank() == m * gpus + h
                    if n == m:
                        c.copy(c.get_dst_rank(), Buffer.output, c.get_dst_index())
                    else:
                        c = c.copy(relay, f"to_{m}")
                        assert (c.index, c.buffer, c.rank) == (g, f"to_{m}", relay)
                if n != m:
                    together = chunk(relay, f"to_{m}", 0, gpus)
                    together.copy(m * gpus + h, Buffer.output, together.get_dst_index(), ch=1)
    XML()
    assert Check()
