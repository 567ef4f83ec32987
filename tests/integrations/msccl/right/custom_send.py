"""A collective of the user's own: rank 0 sends all it has to two others, one after the other."""

from msccl.language import *
from msccl.language.collectives import Collective
from msccl.topologies import *


class ToOthers(Collective):
    def init_buffers(self):
        buffers = []
        for r in range(self.num_ranks):
            held = [Chunk(r, c, -1, c) if r == 0 else None for c in range(self.chunk_factor)]
            buffers.append({Buffer.input: held, Buffer.output: [None] * self.chunk_factor})
        return buffers

    def check(self, prog):
        correct = True
        for r in range(1, self.num_ranks):
            for c in range(self.chunk_factor):
                found = prog.buffers[r][Buffer.output][c]
                if found is None or found.origin_rank != 0 or found.origin_index != c:
                    print(f"rank {r} chunk {c}: {found}")
                    correct = False
        return correct


with MSCCLProgram("direct", fully_connected(3), ToOthers(3, 2, inplace=False), instances=1, protocol="Simple"):
    c = chunk(0, Buffer.input, 0, 2)
    c.copy(1, buffer=Buffer.output, index=0, sendtb=1, recvtb=1, ch=0)
    c.copy(2, buffer=Buffer.output, index=0, sendtb=2, recvtb=1, ch=1)
    XML()
    assert Check()

with MSCCLProgram("chain", line(3), ToOthers(3, 2, inplace=False), instances=2, protocol="LL"):
    for c in chunk(0, Buffer.input, 0, 2).split(2):
        c.copy(1, Buffer.output, c.get_dst_index()).copy(2)
    assert Check()
    XML()
