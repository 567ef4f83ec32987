from hocket import parallelize

with parallelize(2):
    pass
