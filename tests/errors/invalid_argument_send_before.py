from hocket import AllGather, Program

sends = [(5, 0, 0, 1), (0, 2, 1, 3)]
Program.from_sends(AllGather(4), sends)
