from msccl.language import *
from msccl.language.collectives import *
from msccl.topologies import *

with MSCCLProgram("send", fully_connected(2), AllReduce(2, 1, True), 1):
    chunk(0, Buffer.input, 0).send(1, Buffer.input, 0)
