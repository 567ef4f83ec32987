from msccl.collectives import build_collective  # noqa: F401
