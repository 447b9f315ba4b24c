"""Arrays at the door: checks of keys, gradients and outputs, and the pool of output buffers.

Above it: parameter_server.py. Below it: numpy, and torch if the caller's arrays are tensors.
Nothing is copied where dtype and layout fit.
"""

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hps.errors import ConfigError
from hps.row_layout import Floats, Keys

_UINT64 = np.dtype(np.uint64)
_INT64 = np.dtype(np.int64)
_FLOAT32 = np.dtype(np.float32)
_MAX_KEYS = 2**31 - 1  # the native core numbers occurrences with 32 bits
_MAX_BUFFERS = 4
_MAX_BUFFER_FLOATS = 2**24  # 64 MiB


def is_tensor(value: object) -> bool:
    """True for a torch tensor; torch need not be installed."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def as_numpy(value: Any, what: str) -> NDArray[Any]:
    """The numpy view of an array or a CPU tensor.

    Raises:
        ConfigError: neither, or a tensor on another device.
    """
    if type(value) is np.ndarray:
        return value
    if is_tensor(value):
        if value.device.type != "cpu":
            raise ConfigError(f"{what} is a tensor on {value.device}; pass {what}.cpu()")
        if value.layout != sys.modules["torch"].strided:
            raise ConfigError(f"{what} is a {value.layout} tensor; pass a dense one")
        view: NDArray[Any] = value.detach().numpy() if value.requires_grad else value.numpy()
        return view
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    raise ConfigError(f"{what} is a {type(value).__name__}; pass a numpy array or a torch tensor")


def as_keys(keys: Any, what: str = "keys") -> Keys:
    """uint64 [L] of int64 or uint64 keys; a view unless they are not contiguous.

    Raises:
        ConfigError: another dtype or shape, or 2^31 keys or more.
    """
    array = as_numpy(keys, what)
    if array.ndim != 1:
        raise ConfigError(f"{what} has shape {list(array.shape)}; flatten it to [L]")
    if len(array) > _MAX_KEYS:
        raise ConfigError(f"{what} has length {len(array)}; give at most {_MAX_KEYS} keys a call")
    if array.dtype == _INT64:
        array = array.view(_UINT64)
    elif array.dtype != _UINT64:
        raise ConfigError(
            f"{what} has dtype {array.dtype}; keys are 64 bits: convert with "
            f"astype(np.uint64) or .to(torch.int64)"
        )
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def as_floats(values: Any, num_rows: int, width: int, what: str) -> Floats:
    """float32 [num_rows, width]; a view unless it is not contiguous.

    Raises:
        ConfigError: another dtype or shape.
    """
    array = as_numpy(values, what)
    if array.dtype != _FLOAT32:
        raise ConfigError(f"{what} has dtype {array.dtype}; convert it to float32")
    if array.shape != (num_rows, width):
        raise ConfigError(
            f"{what} has shape {list(array.shape)}; one row a key is needed: [{num_rows}, {width}]"
        )
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def as_output(out: Any, num_rows: int, width: int) -> Floats:
    """The numpy view of the caller's output, which must be usable as it stands.

    Raises:
        ConfigError: not float32 [num_rows, width], contiguous and writable.
    """
    array = as_numpy(out, "out")
    if array.dtype != _FLOAT32 or array.shape != (num_rows, width):
        raise ConfigError(
            f"out is {array.dtype} {list(array.shape)}; it must be float32 [{num_rows}, {width}]"
        )
    if not (array.flags.c_contiguous and array.flags.writeable):
        raise ConfigError("out must be contiguous and writable; pass torch.empty or np.empty")
    return array


def joined(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    """One array of all; itself if it is the only one."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def like(array: NDArray[Any], model: object) -> Any:
    """`array` as a tensor if `model` is one; shares memory."""
    if is_tensor(model):
        return sys.modules["torch"].from_numpy(array)
    return array


_ALIGNMENT_FLOATS = 16  # rows from a 64-byte boundary on can be streamed past the caches


def _aligned(owner: Floats, num_rows: int, width: int) -> Floats:
    """[num_rows, width] of `owner` from its first 64-byte boundary on; keeps `owner` alive."""
    first = (-owner.ctypes.data % (4 * _ALIGNMENT_FLOATS)) // 4
    return owner[first : first + num_rows * width].reshape(num_rows, width)


class OutputPool:
    """Reused output buffers: a fresh 27 MB a call costs as much in page faults as the whole step.

    A buffer is free when nobody but the pool refers to it; every view of it (a numpy view, a tensor
    over it, a slice of that) holds a reference to its owner, so the count of references says so.
    At most four buffers of 64 MiB are kept.

    >>> pool = OutputPool()
    >>> rows = pool.take(2, 8)
    >>> rows.shape, pool.take(2, 8) is rows
    ((2, 8), False)
    """

    def __init__(self) -> None:
        self._buffers: list[Floats] = [np.empty(0, np.float32)]
        self._idle_references = self._references(0)

    def _references(self, idx: int) -> int:
        return sys.getrefcount(self._buffers[idx])

    def take(self, num_rows: int, width: int) -> Floats:
        """float32 [num_rows, width], contents undefined; the caller's until it drops it."""
        size = num_rows * width + _ALIGNMENT_FLOATS
        replaced = -1
        for idx in range(len(self._buffers)):
            if self._references(idx) != self._idle_references:
                continue
            # A small result must not hold a large buffer.
            if size <= self._buffers[idx].size <= 4 * size:
                return _aligned(self._buffers[idx], num_rows, width)
            replaced = idx
        if size > _MAX_BUFFER_FLOATS:
            return _aligned(np.empty(size, np.float32), num_rows, width)
        # An eighth more, so that the next batches with a few more keys fit, too.
        buffer: Floats = np.empty(size + size // 8, np.float32)
        if replaced >= 0 and len(self._buffers) == _MAX_BUFFERS:
            self._buffers[replaced] = buffer
        elif len(self._buffers) < _MAX_BUFFERS:
            self._buffers.append(buffer)
        return _aligned(buffer, num_rows, width)
