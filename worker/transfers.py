"""Opens the transfer thread over a model's pool."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from chassis.lifecycle import CannotStart
from kvtransfer.errors import TransportUnavailable
from kvtransfer.handshake import agent_name
from kvtransfer.transfer_thread import TransferThread
from kvtransfer.transport.nixl import NixlTransport
from worker.loaded import LoadedModel


@contextmanager
def open_transfers(
    model: LoadedModel, boot_id: bytes, on_failure: Callable[[BaseException], None]
) -> Iterator[TransferThread]:
    """Runs while entered. Raises CannotStart where this machine cannot move blocks."""
    try:
        transport = NixlTransport(model.runner.kv_cache.tensor, agent_name(boot_id))
    except TransportUnavailable as error:
        raise CannotStart(str(error)) from error
    transfers = TransferThread(transport, on_failure=on_failure)
    transfers.start()
    try:
        yield transfers
    finally:
        transfers.stop()
