"""Pairing ahead of the first request."""

import logging

from baton.v1 import decode_pb2
from chassis.background import Background
from chassis.errors import ServiceError
from kvtransfer.consumer import Consumer
from kvtransfer.errors import TransferError

log = logging.getLogger(__name__)


class Pairings:
    """Pairs in the background with the prefill workers that gateways name. Event loop only."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._background = Background()

    def begin(self, pair: decode_pb2.Pair) -> None:
        """Returns at once; a worker that cannot be paired with is logged."""
        self._background.spawn(self._pair(pair))

    async def close(self) -> None:
        """Gives up what is under way."""
        await self._background.close()

    async def _pair(self, pair: decode_pb2.Pair) -> None:
        try:
            await self._consumer.pair(pair.prefill_address, pair.prefill_boot_id)
        except (ServiceError, TransferError, TimeoutError) as error:
            log.warning("cannot pair with prefill at %s: %s", pair.prefill_address, error)
