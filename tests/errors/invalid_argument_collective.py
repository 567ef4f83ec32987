from hocket import AllReduce, Program

Program(AllReduce)
