from hocket import Broadcast

Broadcast(4, root=4)
