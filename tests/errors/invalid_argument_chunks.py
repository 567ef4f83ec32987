from hocket import AllReduce

AllReduce(2, chunks=2.0)
