"""The ways to import, names that star imports hand on, a module of the user's beside the script."""

import msccl
import msccl.language as ml
import msccl.language.collectives
from beside import exchange
from msccl.language.chunk import Chunk
from msccl.language.ir import ThreadblockPolicy
from msccl.topologies.generic import fully_connected
from msccl.topologies.topology import Topology
from msccl.language import *

assert ml.chunk is chunk
assert msccl.language is ml
assert isinstance(fully_connected(2), Topology)
assert Chunk(1, 2, 3, 4) == Chunk(1, 2)
assert str(ThreadblockPolicy.manual) == "manual"
assert sorted([ml.Buffer.output, ml.Buffer.input]) == [Buffer.input, Buffer.output]


@dataclass
class Way:
    src: int
    dst: int


names = defaultdict(list)
collective = msccl.language.collectives.AllGather(2, 1, inplace=False)
program = MSCCLProgram("names", fully_connected(2), collective, 1, instr_fusion=False)
with program:
    for way in (Way(0, 1), Way(1, 0)):
        names[way.src].append(exchange(way.src, way.dst))
    create_scratch(0, "unused")
    assert Check()
    XML()
assert program.name == "names"
