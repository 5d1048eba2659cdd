"""The few calls of the CUDA driver that torch has no public door for, on the current context.

The driver's C interface is documented and stays compatible: its functions carry the version of
their signature in their name, or in what ``cuGetProcAddress`` is asked for.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

LIBRARY = "libcuda.so.1"
HANDLE_BYTES = 64

_LAZY_ENABLE_PEER_ACCESS = 1
_PEER_ACCESS_ALREADY_ENABLED = 704
# The version that brought batched copies, and whose signature of them is meant.
_BATCH_VERSION = 12080
_ACCESS_IN_STREAM_ORDER = 1
_PREFER_OVERLAP_WITH_COMPUTE = 1


class CudaError(Exception):
    """A call failed; the message has the driver's name of the error."""


class _IpcHandle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_ubyte * HANDLE_BYTES),)


class _CopyAttributes(ctypes.Structure):
    """The hints are of no meaning for memory that is not managed."""

    _fields_ = (
        ("source_access_order", ctypes.c_int),
        ("source_hint", ctypes.c_int * 2),
        ("destination_hint", ctypes.c_int * 2),
        ("flags", ctypes.c_uint),
    )


def export_memory(address: int) -> tuple[bytes, int]:
    """A handle of the allocation around ``address``, and the offset in it. Raises CudaError.

    Allocations that grow in place (torch's expandable segments) have no such handle.
    """
    base, handle = ctypes.c_uint64(), _IpcHandle()
    _call("cuMemGetAddressRange_v2", ctypes.byref(base), None, ctypes.c_uint64(address))
    _call("cuIpcGetMemHandle", ctypes.byref(handle), base)
    return bytes(handle), address - base.value


def map_memory(handle: bytes) -> int:
    """Makes another process's allocation readable here, and gives its address. Raises CudaError.

    What is mapped several times is unmapped as often.
    """
    base = ctypes.c_uint64()
    by_value = _IpcHandle.from_buffer_copy(handle)
    flags = ctypes.c_uint(_LAZY_ENABLE_PEER_ACCESS)
    _call("cuIpcOpenMemHandle_v2", ctypes.byref(base), by_value, flags)
    return base.value


def unmap_memory(base: int) -> None:
    """Ends what ``map_memory`` began; nothing may be reading it. Raises CudaError."""
    _call("cuIpcCloseMemHandle", ctypes.c_uint64(base))


def enable_peer_access(device: int) -> None:
    """Makes all memory of another GPU of this process readable. Raises CudaError."""
    number, context = ctypes.c_int(), ctypes.c_void_p()
    _call("cuDeviceGet", ctypes.byref(number), ctypes.c_int(device))
    # Never released: torch keeps the context as long as the process lives, too.
    _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
    enabled = (0, _PEER_ACCESS_ALREADY_ENABLED)
    _call("cuCtxEnablePeerAccess", context, ctypes.c_uint(0), fine=enabled)


def copy_batch(pieces: NDArray[np.int64], stream: int) -> None:
    """Begins to copy all ``pieces`` (N, 3), N >= 1, by copy engines: source address, destination
    address, bytes. Raises CudaError."""
    columns = np.ascontiguousarray(pieces.T)
    sources, length = columns.ctypes.data, columns.strides[0]
    attributes = _CopyAttributes(_ACCESS_IN_STREAM_ORDER, flags=_PREFER_OVERLAP_WITH_COMPUTE)
    first, failed = ctypes.c_size_t(0), ctypes.c_size_t()
    _check(
        "cuMemcpyBatchAsync",
        _batch_function()(
            *(sources + length, sources, sources + 2 * length, len(pieces)),
            *(ctypes.byref(attributes), ctypes.byref(first), 1),
            *(ctypes.byref(failed), stream),
        ),
    )


@cache
def _batch_function() -> Any:
    address, status = ctypes.c_void_p(), ctypes.c_int()
    version, flags = ctypes.c_int(_BATCH_VERSION), ctypes.c_uint64(0)
    outputs = ctypes.byref(address), version, flags, ctypes.byref(status)
    _call("cuGetProcAddress_v2", b"cuMemcpyBatchAsync", *outputs)
    if not address.value:
        raise CudaError("this driver has no cuMemcpyBatchAsync: it is older than CUDA 12.8")
    return ctypes.CFUNCTYPE(
        ctypes.c_int,
        *[ctypes.c_void_p] * 3,
        ctypes.c_size_t,
        *[ctypes.c_void_p] * 2,
        ctypes.c_size_t,
        *[ctypes.c_void_p] * 2,
    )(address.value)


def _call(function: str, *arguments: Any, fine: Sequence[int] = (0,)) -> None:
    _check(function, getattr(_library(), function)(*arguments), fine)


def _check(function: str, result: int, fine: Sequence[int] = (0,)) -> None:
    if result not in fine:
        name = ctypes.c_char_p()
        _library().cuGetErrorName(result, ctypes.byref(name))
        raise CudaError(f"{function}: {(name.value or b'unknown').decode()} ({result})")


@cache
def _library() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise CudaError(f"no CUDA driver: {error}") from error
