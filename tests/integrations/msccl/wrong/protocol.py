from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

with MSCCLProgram("protocol", fully_connected(2), AllReduce(2, 1, True), 1, "LL256"):
    pass
