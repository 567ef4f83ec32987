from hocket import AllReduce, Program, chunk

with Program(AllReduce(2, inplace=True)):
    mine, theirs = chunk(0, "in", 0), chunk(1, "in", 0)
    mine.reduce(theirs)
    mine.reduce(theirs)
