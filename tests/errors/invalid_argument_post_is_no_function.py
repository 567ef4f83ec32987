from hocket import Custom

Custom(2, inputs=1, outputs=1, post={(0, 0)})
