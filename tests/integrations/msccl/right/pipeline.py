"""AllToNext with a check of its own. It says in place, and keeps its buffers apart: apart is what is meant."""

import argparse

from msccl.language import *
from msccl.language.collectives import Collective
from msccl.topologies import *
from msccl.topologies.distributed import *


class Pipeline(Collective):
    def init_buffers(self):
        return [
            {
                Buffer.input: [
                    Chunk(r, c, r + 1, c) if r + 1 < self.num_ranks else None for c in range(self.chunk_factor)
                ],
                Buffer.output: [None] * self.chunk_factor,
            }
            for r in range(self.num_ranks)
        ]

    def check(self, prog):
        return all(
            prog.buffers[r][Buffer.output][c] == Chunk(r - 1, c)
            for r in range(1, self.num_ranks)
            for c in range(self.chunk_factor)
        )


def pipeline(nodes, gpus, instances):
    size = nodes * gpus
    with MSCCLProgram("alltonext", fully_connected(size), Pipeline(size, gpus, True), instances):
        for r in range(size - 1):
            n, g = divmod(r, gpus)
            if g < gpus - 1:
                chunk(r, Buffer.input, 0, gpus).copy(r + 1, Buffer.output, 0, ch=g % 2)
                continue
            for i in range(gpus):
                c = chunk(r, Buffer.input, i)
                if i < gpus - 1:
                    c = c.copy(n * gpus + i, f"out_of_{n}", 0)
                c = c.copy((n + 1) * gpus + i, f"into_{n + 1}", 0, ch=1)
                c.copy(r + 1, Buffer.output, c.get_dst_index())
        Check()
        XML()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("nodes", type=int)
    parser.add_argument("gpus", type=int)
    parser.add_argument("instances", type=int)
    args = parser.parse_args()
    pipeline(args.nodes, args.gpus, args.instances)
