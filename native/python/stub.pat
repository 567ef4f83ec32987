# What the generator of src/hocket/_native.pyi is to write instead where it does not know: the types of values, and what
# nanobind binds as a slot of CPython.

hocket._native.(ISA|PROTOCOL)$:
    \1: str

hocket._native.WITNESS$:
    WITNESS: int

hocket._native.(ISAS|TYPES|OPERATORS)$:
    \1: tuple[str, ...]

hocket._native.(OPERATORS_OF|PLAN_LAYOUT)$:
    \1: dict[str, tuple[str, ...]]

hocket._native.TYPE_BYTES$:
    TYPE_BYTES: dict[str, int]

hocket._native.ACCUMULATORS$:
    ACCUMULATORS: dict[str, str]

hocket._native.TUNABLES$:
    TUNABLES: list[Tunable]

hocket._native.Loan$:
    class Loan:
        """Memory, given back at its end."""

        def __buffer__(self, flags: int, /) -> memoryview: ...

hocket._native.PreparedCall.__call__$:
    def __call__(self, x: numpy.typing.NDArray[numpy.generic] | Buffer | None = None, out: numpy.typing.NDArray[numpy.generic] | Buffer | None = None) -> numpy.typing.NDArray[numpy.generic] | Buffer | None: ...
