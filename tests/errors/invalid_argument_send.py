from hocket import AllReduce, Program

sends = [(1, 0, 1, 0), (0, 0, 0, 2, "reduce")]
Program.from_sends(AllReduce(2), sends)
