"""The thread that posts, polls and completes transfers, so that no engine or event loop does."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import numpy as np

from kvtransfer.block_read import BlockRead, running_future
from kvtransfer.errors import BlocksCorrupt, TransferClosed
from kvtransfer.poll_pace import PollPace, pause_precisely
from kvtransfer.transfer_queue import TransferQueue
from kvtransfer.transport.base import Transport, enter_device
from kvtransfer.transport.block_runs import cut_pieces
from kvtransfer.transport.ranked import RankedTransport, RemoteRank

log = logging.getLogger(__name__)

# Posting a read of host memory copies it there and then: this bounds how long one post takes.
MAX_PIECE_BYTES = 8 << 20
MAX_BYTES_IN_FLIGHT = 64 << 20
# A read of device memory is only begun: fewer and larger ones keep the link full.
MAX_DEVICE_PIECE_BYTES = 64 << 20
MAX_DEVICE_BYTES_IN_FLIGHT = 512 << 20


class TransferThread:
    """Owns the transports of a worker's ranks. Every public method may be called from any thread.

    With nothing open it is blocked and costs nothing. While reads are under way, or a ``hold`` is
    in force, it polls: often at first, ever more rarely while nothing happens.
    """

    def __init__(
        self,
        ranks: Sequence[Transport],
        *,
        on_failure: Callable[[BaseException], None] | None = None,
        max_piece_bytes: int | None = None,
        max_bytes_in_flight: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        transport = RankedTransport(ranks)
        self._transport = transport
        self.metadata = transport.metadata()
        self.pool = transport.pool
        self.transport_name = transport.name
        self.num_blocks = transport.num_blocks
        self.block_bytes = transport.block_bytes
        on_device = transport.pool.is_cuda
        piece = max_piece_bytes or (MAX_DEVICE_PIECE_BYTES if on_device else MAX_PIECE_BYTES)
        in_flight = max_bytes_in_flight or (
            MAX_DEVICE_BYTES_IN_FLIGHT if on_device else MAX_BYTES_IN_FLIGHT
        )
        self._blocks_a_piece = max(1, piece // transport.block_bytes)
        self._queue = TransferQueue(
            transport,
            max_blocks_in_flight=max(1, in_flight // transport.block_bytes),
            clock=clock,
        )
        self._on_failure = on_failure
        self._clock = clock
        self._wake = threading.Condition()
        self._inbox: deque[Callable[[], None]] = deque()
        self._stopping = False
        self._closed = False
        self._thread = threading.Thread(target=self._main, name="kv-transfer", daemon=True)
        # The rest belongs to the thread.
        self._num_holds = 0
        self._poll_until = 0.0
        self._pace = PollPace(clock)
        self._turns = 0
        self._asleep = True

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Fails what is under way, closes the transport and ends the thread. Idempotent."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.ident is None:
            self._shut_down()
        else:
            self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether the thread is there to do its work."""
        return self._thread.is_alive() and not self._closed

    @property
    def thread(self) -> threading.Thread:
        """For who watches it."""
        return self._thread

    @property
    def turn(self) -> int | None:
        """Number of the round under way; None while the thread waits.

        A number that stands still is a call into the transport that does not come back.
        """
        return None if self._asleep else self._turns

    @property
    def polling(self) -> bool:
        """Whether something is open, so that the thread does not sleep."""
        held = self._num_holds > 0 or self._clock() < self._poll_until
        return held or self._queue.has_work

    @property
    def num_blocks_in_flight(self) -> int:
        """Blocks that have been posted and may be written just now."""
        return self._queue.num_blocks_in_flight

    @property
    def num_bytes_read(self) -> int:
        """Bytes that have arrived since the start, by whole blocks, of use to anybody or not."""
        return sum(self.bytes_read_by_transport().values())

    def bytes_read_by_transport(self) -> dict[str, int]:
        """``num_bytes_read``, by the name of the transport that moved them."""
        return {name: each * self.block_bytes for name, each in self._queue.blocks_read.items()}

    def trouble(self, limit: float) -> str | None:
        """Why no work should rely on this thread, or None.

        It has ended, or a read that failed has not ended within ``limit`` seconds, so that its
        blocks stay fenced (protocol 4.1).
        """
        if not self.alive:
            return "the transfer thread has ended"
        failed_at = self._queue.oldest_failure()
        if failed_at is not None and (seconds := self._clock() - failed_at) > limit:
            return f"blocks are fenced by a read that failed {seconds:.0f} s ago"
        return None

    def connect(self, peer: str, ranks: Sequence[RemoteRank]) -> "Future[None]":
        """Makes ``peer`` readable; resolves once a byte of each rank has moved, fails with
        PeerError."""
        connected: Future[None] = running_future()
        if not self._submit(lambda: self._queue.connect(peer, ranks, connected)):
            connected.set_exception(_closed())
        return connected

    def disconnect(self, peer: str) -> "Future[None]":
        """Gives up all reads from ``peer`` and forgets it; resolves when they have ended."""
        removed: Future[None] = running_future()
        if not self._submit(lambda: self._queue.disconnect(peer, removed)):
            removed.set_result(None)
        return removed

    def checksums(self, block_ids: Sequence[int]) -> tuple[int, ...]:
        """CRC-32 of each block here, which must be final; waits for them."""
        return self._transport.checksums(block_ids)

    def read(
        self,
        peer: str,
        remote_ids: Sequence[int],
        local_ids: Sequence[int],
        checksums: Sequence[int] = (),
    ) -> BlockRead:
        """Reads the peer's blocks ``remote_ids`` into ``local_ids``, position by position.

        Where there are ``checksums``, the read fails with BlocksCorrupt if others arrive. What the
        peer does never raises here: see ``BlockRead``. An empty read is done at once.
        """
        here = np.asarray(local_ids, dtype=np.int64)
        if ((here < 0) | (here >= self.num_blocks)).any():
            raise ValueError(f"local blocks {local_ids} are not all in a pool of {self.num_blocks}")
        pieces = cut_pieces(remote_ids, here, self._blocks_a_piece)

        def check() -> BlocksCorrupt | None:
            wrong = checksums and self._transport.checksums(local_ids) != tuple(checksums)
            text = f"{len(local_ids)} blocks from {peer} are not what their checksums say"
            return BlocksCorrupt(text) if wrong else None

        read = BlockRead(peer, local_ids, pieces, check, self._give_up)
        if not self._submit(lambda: self._queue.begin(read)):
            read.fail(_closed(), self._clock())
        return read

    def hold(self) -> None:
        """Polls until the matching ``release``, so that peers' reads from our pool progress."""
        self._submit(self._hold)

    def release(self, linger: float = 0.0) -> None:
        """Ends a ``hold``, but polls for ``linger`` more seconds."""
        self._submit(lambda: self._release(linger))

    def linger(self, seconds: float) -> None:
        """Polls for ``seconds`` from now on."""
        self._submit(lambda: self._linger(seconds))

    def touch(self) -> None:
        """Polls often for a moment: a peer is about to read."""
        self._submit(lambda: None)

    def _give_up(self, read: BlockRead) -> None:
        self._submit(lambda: self._queue.give_up(read))

    def _submit(self, command: Callable[[], None]) -> bool:
        """Runs ``command`` on the thread, soon; False where there is no thread any more."""
        with self._wake:
            if self._closed:
                return False
            self._inbox.append(command)
            self._wake.notify()
            return True

    # From here on, on the thread.

    def _main(self) -> None:
        failure: BaseException | None = None
        if self.pool.is_cuda:
            enter_device(self.pool.device)
            pause_precisely()
        try:
            while self._wait():
                self._turns += 1
                self._asleep = False
                self._run_inbox()
                if self.polling and self._queue.step():
                    self._pace.note_event()
                self._asleep = True
        except BaseException as error:
            log.exception("the transfer thread failed")
            failure = error
        try:
            self._shut_down()
        except Exception as error:
            log.exception("the transfer thread could not close its transport")
            failure = failure or error
        if failure is not None and self._on_failure is not None:
            self._on_failure(failure)

    def _wait(self) -> bool:
        """Blocks until there is something to do; False when it is time to stop."""
        pause = self._pace.next_pause() if self.polling else None
        with self._wake:
            if not self._inbox and not self._stopping and pause != 0.0:
                self._wake.wait(pause)
            return not self._stopping

    def _run_inbox(self) -> None:
        with self._wake:
            commands = tuple(self._inbox)
            self._inbox.clear()
        for command in commands:
            command()
        if commands:
            self._pace.note_event()

    def _hold(self) -> None:
        self._num_holds += 1

    def _release(self, linger: float) -> None:
        self._num_holds -= 1
        self._linger(linger)

    def _linger(self, seconds: float) -> None:
        self._poll_until = max(self._poll_until, self._clock() + seconds)

    def _shut_down(self) -> None:
        with self._wake:
            self._closed = True
        try:
            self._run_inbox()
        finally:
            self._queue.close(_closed())


def _closed() -> TransferClosed:
    return TransferClosed("the transfer thread has stopped")
