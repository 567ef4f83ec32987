from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

with MSCCLProgram("over", fully_connected(1), AllReduce(1, 1, True), 1):
    pass
XML()
