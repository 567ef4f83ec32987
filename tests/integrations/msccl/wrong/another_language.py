from msccl.language import Json  # noqa: F401
