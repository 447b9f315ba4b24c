"""Wire: the formats in which the floats of rows and gradients travel, by name and number.

Above it: wire.py, which puts rows into them; flags and configs. Below it: nothing, numpy neither:
`hps train --help` names them.
"""

from enum import IntEnum

from hps.errors import ConfigError


class Wire(IntEnum):
    """The formats, numbered as `DType` in proto/hps/v1."""

    FLOAT32 = 0
    FLOAT16 = 1
    BFLOAT16 = 2
    INT8 = 3

    @classmethod
    def named(cls, name: str, field: str = "wire") -> "Wire":
        """The format of that name.

        Args:
            name: of the format.
            field: what has it, in errors.

        Raises:
            ConfigError: there is none.

        >>> Wire.named("bfloat16").name
        'BFLOAT16'
        """
        if not isinstance(name, str) or name not in (wire.name.lower() for wire in cls):
            known = [wire.name.lower() for wire in cls]
            raise ConfigError(f"{field}={name!r} must be one of {known}")
        return cls[name.upper()]

    def num_bytes(self, num_rows: int, dim: int) -> int:
        """Bytes that rows take.

        >>> Wire.INT8.num_bytes(2, 16)
        40
        """
        if self is Wire.INT8:
            return num_rows * (4 + dim)
        return num_rows * dim * (4 if self is Wire.FLOAT32 else 2)


WIRES = tuple(wire.name.lower() for wire in Wire)
