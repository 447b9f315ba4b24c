"""Arrays at the door: checks of keys, gradients and outputs, and the pool of output buffers.

Above it: parameter_server/rows.py; AnyArray and HostArray are in signatures everywhere. Below it:
numpy, and torch if the caller's arrays are tensors.
Nothing is copied where dtype and layout fit. With a gpu_cache on a device, tensors of that device
pass as they are; everything else is an array of the host, which the cache copies.
"""

import sys
import threading
from typing import TYPE_CHECKING, Any, TypeVar, Union, cast

import numpy as np
from numpy.typing import NDArray

from hps.common.row_layout import Floats, Keys, Labels
from hps.errors import ConfigError

if TYPE_CHECKING:
    from typing import TypeGuard

    import torch
    from typing_extensions import TypeIs

HostArray = NDArray[Any]
# What a caller may hand in and gets back; torch need not be installed.
AnyArray = Union[HostArray, "torch.Tensor"]
Offsets = NDArray[np.int64]
# Offsets [F*B + 1], weights [L] or None, and mean, as caches and plans take bags; tensors of a
# device pass under these names, as keys and rows do (see as_keys).
PoolArguments = tuple[Offsets, Floats | None, bool]
_Array = TypeVar("_Array", bound=AnyArray)

_UINT64 = np.dtype(np.uint64)
_INT64 = np.dtype(np.int64)
_FLOAT32 = np.dtype(np.float32)
HOST = "cpu"
_MAX_KEYS = 2**31 - 1  # the native core numbers occurrences with 32 bits
_MAX_BUFFERS = 4
_MAX_BUFFER_FLOATS = 2**24  # 64 MiB


def is_tensor(value: object) -> "TypeIs[torch.Tensor]":
    """True for a torch tensor; torch need not be installed."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_on(value: object, device: str) -> "TypeGuard[torch.Tensor]":
    """True for a tensor on `device`, which is not the host."""
    return device != HOST and is_tensor(value) and str(getattr(value, "device", None)) == device


def as_numpy(value: object, what: str) -> HostArray:
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
        try:
            view: HostArray = value.detach().numpy() if value.requires_grad else value.numpy()
        except TypeError:  # numpy has no such numbers
            raise ConfigError(f"{what} has dtype {value.dtype}; convert it to float32") from None
        return view
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    raise ConfigError(f"{what} is a {type(value).__name__}; pass a numpy array or a torch tensor")


def as_contiguous(value: AnyArray, what: str) -> HostArray:
    """As as_numpy, copied if it is not contiguous."""
    return np.ascontiguousarray(as_numpy(value, what))


def as_keys(keys: AnyArray, device: str = HOST) -> Keys:
    """uint64 [L] of int64 or uint64 keys; a view unless they are not contiguous.

    Returns:
        An array, or an int64 tensor if they are on `device`: also that under the name of Keys, for
        only a cache on that device looks into it.

    Raises:
        ConfigError: another dtype or shape, or 2^31 keys or more.
    """
    what = "keys"
    array: AnyArray = keys if is_on(keys, device) else as_numpy(keys, what)
    if array.ndim != 1:
        raise ConfigError(f"{what} has shape {list(array.shape)}; flatten it to [L]")
    if len(array) > _MAX_KEYS:
        raise ConfigError(f"{what} has length {len(array)}; give at most {_MAX_KEYS} keys a call")
    if is_tensor(array):
        torch = sys.modules["torch"]
        if array.dtype not in (torch.int64, torch.uint64):
            raise ConfigError(f"{what} has dtype {array.dtype}; keys are 64 bits: .to(torch.int64)")
        return cast("Keys", array.contiguous().view(torch.int64))
    if array.dtype == _INT64:
        array = array.view(_UINT64)
    elif array.dtype != _UINT64:
        raise ConfigError(
            f"{what} has dtype {array.dtype}; keys are 64 bits: convert with "
            f"astype(np.uint64) or .to(torch.int64)"
        )
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def on_host(keys: AnyArray) -> Keys:
    """Checked keys (see as_keys) as an array; copies those of a device and waits for them."""
    return to_host(keys).view(np.uint64)


def as_floats(values: AnyArray, num_rows: int, width: int, what: str, device: str = HOST) -> Floats:
    """float32 [num_rows, width]; a view unless it is not contiguous; a tensor if on `device`, under
    the name of Floats as as_keys has it.

    Raises:
        ConfigError: another dtype or shape.
    """
    array: AnyArray = values if is_on(values, device) else as_numpy(values, what)
    if array.dtype not in _float32_of(array):
        raise ConfigError(f"{what} has dtype {array.dtype}; convert it to float32")
    if tuple(array.shape) != (num_rows, width):
        raise ConfigError(
            f"{what} has shape {list(array.shape)}; one row a key is needed: [{num_rows}, {width}]"
        )
    if is_tensor(array):
        return cast("Floats", array.detach().contiguous())
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def as_labels(labels: AnyArray, num_rows: int, what: str) -> Labels:
    """Labels float32 [num_rows], each 0 or 1, as uint8 of an array of their own.

    Raises:
        ConfigError: another dtype or shape; names the first label that is neither 0 nor 1.
    """
    array = as_numpy(labels, what)
    if array.dtype != _FLOAT32:
        raise ConfigError(f"{what} has dtype {array.dtype}; convert it to float32")
    if tuple(array.shape) != (num_rows,):
        raise ConfigError(f"{what} has shape {list(array.shape)}; [{num_rows}] is needed")
    are_clicks = array == 1
    is_allowed = are_clicks | (array == 0)
    if not is_allowed.all():
        place = int(np.argmin(is_allowed))
        raise ConfigError(
            f"{what}[{place}] is {float(array[place]):g}; clicks are counted, so that each must be "
            "0 or 1"
        )
    flags: Labels = are_clicks.view(np.uint8)
    return flags


def as_output(out: AnyArray, num_rows: int, width: int, device: str = HOST) -> Floats:
    """The numpy view of the caller's output, which must be usable as it is; itself on `device`.

    Raises:
        ConfigError: not float32 [num_rows, width], contiguous and writable.
    """
    array: AnyArray = out if is_on(out, device) else as_numpy(out, "out")
    if array.dtype not in _float32_of(array) or tuple(array.shape) != (num_rows, width):
        raise ConfigError(
            f"out is {array.dtype} {list(array.shape)}; it must be float32 [{num_rows}, {width}]"
        )
    if is_tensor(array):
        is_usable = array.is_contiguous()
    else:
        is_usable = array.flags.c_contiguous and array.flags.writeable
    if not is_usable:
        raise ConfigError("out must be contiguous and writable; pass torch.empty or np.empty")
    return cast("Floats", array)


def _float32_of(array: AnyArray) -> "tuple[np.dtype[np.float32] | torch.dtype]":
    """What float32 is called where the array comes from."""
    return (sys.modules["torch"].float32,) if is_tensor(array) else (_FLOAT32,)


def joined(arrays: list[_Array]) -> _Array:
    """One array of all; itself if it is the only one."""
    if len(arrays) == 1:
        return arrays[0]
    if any(is_tensor(array) for array in arrays):
        torch = sys.modules["torch"]
        device = next(array.device for array in arrays if is_tensor(array))
        parts = [
            array if is_tensor(array) else torch.from_numpy(_signed(array)).to(device)
            for array in arrays
        ]
        return cast("_Array", torch.cat(parts))
    return cast("_Array", np.concatenate(arrays))


def _signed(array: HostArray) -> HostArray:
    """Keys with the dtype that tensors of keys have."""
    return array.view(_INT64) if array.dtype == _UINT64 else array


def new_output(keys: object, num_rows: int, width: int, device: str) -> Floats | None:
    """A tensor float32 [num_rows, width] beside keys that are on `device`, else None."""
    if not is_on(keys, device):
        return None
    tensor: Floats = sys.modules["torch"].empty(num_rows, width, device=device)
    return tensor


def like(array: AnyArray, model: object) -> AnyArray:
    """`array` as a tensor if `model` is one; shares memory."""
    if is_tensor(model) and not is_tensor(array):
        tensor: torch.Tensor = sys.modules["torch"].from_numpy(array)
        return tensor
    return array


def to_host(values: AnyArray) -> HostArray:
    """Values as an array; copies those of a device and waits for them."""
    array: HostArray = values.cpu().numpy() if is_tensor(values) else values
    return array


def put(values: HostArray, out: "torch.Tensor") -> None:
    """Values into a tensor on a device."""
    out.copy_(sys.modules["torch"].from_numpy(values))


def put_rows(rows: Floats, places: NDArray[np.intp], out: AnyArray) -> None:
    """rows[places] into out [L, D], an array or a tensor on a device."""
    if is_tensor(out):
        put(rows[places], out)
    else:
        np.take(rows, places, axis=0, out=out, mode="clip")


_ALIGNMENT_FLOATS = 16  # rows from a 64-byte boundary on can be streamed past the caches


def _aligned(owner: Floats, num_rows: int, width: int) -> Floats:
    """[num_rows, width] of `owner` from its first 64-byte boundary on; keeps `owner` alive."""
    first = (-owner.ctypes.data % (4 * _ALIGNMENT_FLOATS)) // 4
    return owner[first : first + num_rows * width].reshape(num_rows, width)


class OutputPool:
    """Reused output buffers: a fresh 27 MB a call costs as much in page faults as the whole step.

    A buffer is free when nobody but the pool refers to it; every view of it (a numpy view, a tensor
    over it, a slice of that) holds a reference to its owner, so the count of references says so.
    At most four buffers of 64 MiB are kept. Thread-safe.

    >>> pool = OutputPool()
    >>> rows = pool.take(2, 8)
    >>> rows.shape, pool.take(2, 8) is rows
    ((2, 8), False)
    """

    def __init__(self) -> None:
        # Between a look at a buffer's references and its next view no other thread may look.
        self._lock = threading.Lock()
        self._buffers: list[Floats] = [np.empty(0, np.float32)]
        self._idle_references = self._references(0)

    def _references(self, idx: int) -> int:
        return sys.getrefcount(self._buffers[idx])

    def take(self, num_rows: int, width: int) -> Floats:
        """float32 [num_rows, width], contents undefined; the caller's until it drops it."""
        with self._lock:
            return self._take(num_rows, width)

    def _take(self, num_rows: int, width: int) -> Floats:
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
