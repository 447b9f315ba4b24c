"""numba's compiler with the options that every kernel of the generator shares.

Above it: kernels.py. Below it: numba, from the extra `train`.
"""

from collections.abc import Callable
from typing import TypeVar, cast

from hps.errors import ConfigError

try:
    import numba
except ImportError as error:
    raise ConfigError("hps generate needs numba: pip install 'hps-ctr[train]'") from error

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compiles at the first call, without the interpreter lock, and keeps the code on disk."""
    return cast(Function, numba.njit(nogil=True, cache=True, error_model="numpy")(function))
