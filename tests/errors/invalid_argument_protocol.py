from hocket import AllReduce, Program

Program(AllReduce(2), protocol="LL256")
