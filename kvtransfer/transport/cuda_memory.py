"""Memory of the GPUs of this host, shared between processes by CUDA IPC."""

import secrets
import struct
import uuid
from pathlib import Path

import torch

from engine.kernels.cuda.copy_pieces import ALIGNMENT, NUM_PROGRAMS, copy_pieces
from kvtransfer.errors import PeerLost, PeerUnreachable, TransportUnavailable
from kvtransfer.transport import cuda_driver
from kvtransfer.transport.base import enter_device
from kvtransfer.transport.cuda_driver import CudaError
from kvtransfer.transport.peer_memory import Done, Mapping, PeerMemory, Pieces, equal_pieces

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PROCESS = secrets.token_bytes(16)
# Host, process, handle, offset in it; address and device, which mean something in one process.
_FORMAT = struct.Struct(f"<16s16s{cuda_driver.HANDLE_BYTES}sQQI")

# Average bytes of a copy's pieces from which on copy engines do it. They leave the processors to
# what runs there: decode steps of an 8B model took 5 % longer beside them, and 22 % beside programs
# of ours that brought fewer bytes (two H200). But an engine takes its time for every piece.
ENGINE_BYTES = 256 << 10


class CudaMemory(PeerMemory):
    """Of one GPU, and of those that it can read from.

    Copies run on a stream of its own, of torch's default priority, which is the lowest: in order,
    by copy engines where pieces have ``engine_bytes``, else by programs of ours.
    """

    def __init__(
        self,
        device: torch.device,
        engine_bytes: int = ENGINE_BYTES,
        num_programs: int = NUM_PROGRAMS,
    ) -> None:
        enter_device(device)
        self._stream = torch.cuda.Stream(device)
        self._engine_bytes = engine_bytes
        self._num_programs = num_programs

    def export(self, memory: torch.Tensor) -> bytes:
        try:
            with self._current():
                handle, offset = cuda_driver.export_memory(memory.data_ptr())
            host = uuid.UUID(_BOOT_ID.read_text().strip()).bytes
        except (CudaError, OSError, ValueError) as error:
            raise TransportUnavailable(
                f"CUDA IPC cannot offer this memory: {error} (expandable segments in "
                f"PYTORCH_CUDA_ALLOC_CONF, or a virtual machine without IPC?)"
            ) from error
        address = memory.data_ptr()
        return _FORMAT.pack(host, _PROCESS, handle, offset, address, memory.get_device())

    def map(self, exported: bytes) -> Mapping:
        if len(exported) != _FORMAT.size:
            raise PeerUnreachable(f"{len(exported)} bytes do not describe memory of a GPU")
        host, process, handle, offset, address, device = _FORMAT.unpack(exported)
        if host != uuid.UUID(_BOOT_ID.read_text().strip()).bytes:
            raise PeerUnreachable("it is on another host")
        try:
            if process == _PROCESS:
                # A process cannot map what is its own.
                if device != self._stream.device.index:
                    with self._current():
                        cuda_driver.enable_peer_access(device)
                return Mapping(address)
            with self._current():
                base = cuda_driver.map_memory(handle)
        except CudaError as error:
            raise PeerUnreachable(
                f"its memory cannot be mapped: {error} (does this process see its GPU, and share "
                f"its IPC and PID namespaces?)"
            ) from error
        return Mapping(base + offset, base)

    def unmap(self, mapping: Mapping) -> None:
        if mapping.base is not None:
            with self._current():
                cuda_driver.unmap_memory(mapping.base)

    def copy(self, pieces: Pieces) -> None:
        large = int(pieces[:, 2].sum()) >= self._engine_bytes * len(pieces)
        try:
            if large or (pieces % ALIGNMENT).any():
                with self._current():
                    cuda_driver.copy_batch(pieces, self._stream.cuda_stream)
            else:
                self._copy_by_programs(pieces)
        except (CudaError, RuntimeError) as error:
            raise PeerLost(f"it cannot be read: {error}") from error

    def mark(self) -> Done:
        event = torch.cuda.Event()
        event.record(self._stream)
        return event.query

    def finish(self) -> None:
        self._stream.synchronize()

    def _copy_by_programs(self, pieces: Pieces) -> None:
        equal, num_bytes = equal_pieces(pieces)
        # Pinned and on the device as long as the stream needs it: torch sees to both.
        table = torch.from_numpy(equal).pin_memory()
        with torch.cuda.stream(self._stream):
            on_device = table.to(self._stream.device, non_blocking=True)
            copy_pieces(on_device, num_bytes, self._num_programs)

    def _current(self) -> torch.cuda.device:
        """Makes the device's context that of the driver's calls, while entered."""
        return torch.cuda.device(self._stream.device)
