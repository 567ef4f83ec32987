from hocket import chunk

chunk(0, "in", 0)
