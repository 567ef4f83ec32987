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

hocket._native.TUNABLES$:
    TUNABLES: list[Tunable]

hocket._native.Loan$:
    class Loan:
        """Memory, given back at its end."""

        def __buffer__(self, flags: int, /) -> memoryview: ...

hocket._native.PreparedCall.__call__$:
    def __call__(self, x: _Argument = None, out: _Argument = None) -> _Argument: ...

hocket._native.PreparedCall.start$:
    def start(self, x: _Argument = None, out: _Argument = None, keep: object = None) -> Handle[_Argument]:
        \doc

hocket._native.__suffix__$:
    _Array = numpy.typing.NDArray[numpy.generic]
    _Parts = list[_Array] | list[Buffer] | list[_Array | Buffer] | tuple[_Array | Buffer, ...]
    _Argument = _Array | Buffer | _Parts | int | None
