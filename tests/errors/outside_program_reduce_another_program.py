from hocket import AllReduce, Program, chunk

with Program(AllReduce(2)):
    theirs = chunk(0, "in", 0)
with Program(AllReduce(2)):
    mine = chunk(1, "in", 0)
    mine.reduce(theirs)
