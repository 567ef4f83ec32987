from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

with MSCCLProgram("sizes", fully_connected(3), AllReduce(2, 1, True), 1):
    pass
