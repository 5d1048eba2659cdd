"""A prefill and a decode worker, all real but the model, the threads, the wire and the bytes."""

import functools
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from baton.v1 import decode_pb2, prefill_pb2
from chassis.errors import Cancelled
from chassis.metrics import Metrics
from decode_svc.config import DecodeSettings
from decode_svc.worker import DecodeWorker
from engine.block_manager import BlockManager
from kvtransfer.errors import DuplicateAttempt
from kvtransfer.layout import KvLayout
from kvtransfer.transport.local import LocalFabric
from prefill_svc.config import PrefillSettings
from prefill_svc.scheduler import PrefillScheduler
from prefill_svc.worker import PrefillWorker
from tests.kvtransfer.machine.fake_loop import FakeLoop
from tests.kvtransfer.machine.faulty_transport import FaultyTransport
from tests.kvtransfer.machine.stand_ins import NotedOutbox, Try, TurnedEngine, TurnedTransfers
from tests.kvtransfer.machine.wire import Wire
from tests.kvtransfer.machine.written_model import (
    BLOCK_SIZE,
    VOCAB_SIZE,
    LateRunner,
    WrittenRunner,
    next_token,
)
from worker.identity import Identity
from worker.leg import Leg, Limits
from worker.loaded import LoadedModel
from worker.parts import Parts
from worker.settings import EngineSettings

LAYOUT = KvLayout(
    model_digest="m",
    dtype="bfloat16",
    num_layers=1,
    num_kv_heads=1,
    head_dim=1,
    block_size=BLOCK_SIZE,
    memory="host",
)
LIMITS = Limits(VOCAB_SIZE, max_context_tokens=64, block_size=BLOCK_SIZE)
NUM_BLOCKS = 9
STEP_TOKENS = 6
ENGINE = EngineSettings(block_size=BLOCK_SIZE, threads=1)


class House:
    """Both workers, the wire and the transport between them, and the attempts."""

    def __init__(self, *, checksums: bool, ahead: bool) -> None:
        self.ahead = ahead
        # Whether reads and messages go on while the decode engine waits for its device.
        self.hurried = False
        self.loop = FakeLoop()
        self.wire, self.fabric = Wire(), LocalFabric()
        self.tries: list[Try] = []
        self._numbers = itertools.count(1)
        self._managers: dict[str, BlockManager] = {}
        # What was raised where nobody would hear of it: failed checks of what leaves, and bugs.
        self.faults: list[Any] = []
        self.loop.set_exception_handler(lambda _, facts: self.faults.append(facts))
        # Pairs are made and made again whenever the loop runs.
        self._wiring = patch("kvtransfer.consumer.open_channel", self.wire.open)
        self._wiring.start()
        self.loop.run_until_complete(self._build(checksums))
        self.settle()

    async def _build(self, checksums: bool) -> None:
        scheduler = functools.partial(PrefillScheduler, clock=self.loop.time)
        with (
            patch("prefill_svc.worker.EngineLoop", TurnedEngine),
            patch("decode_svc.worker.EngineLoop", TurnedEngine),
            patch("prefill_svc.worker.PrefillScheduler", scheduler),
            patch("prefill_svc.worker.BlockManager", functools.partial(self._manage, "prefill")),
            patch("decode_svc.worker.BlockManager", functools.partial(self._manage, "decode")),
        ):
            self.prefill_parts = self._parts("prefill")
            prefill = PrefillSettings(engine=ENGINE, checksums=checksums)
            self.prefill = PrefillWorker(prefill, self.prefill_parts)
            self.decode_parts = self._parts("decode")
            decode = DecodeSettings(engine=ENGINE, max_decode_batch=4)
            self.decode = DecodeWorker(decode, self.decode_parts, self.loop.time)
        self.wire.producer = self.prefill.producer
        for worker in (self.prefill, self.decode):
            worker.board.set_accepting(True)
        self.session = self.decode.open_session(NotedOutbox(self._hear))

    def _manage(self, role: str, num_blocks: int) -> BlockManager:
        return self._managers.setdefault(role, BlockManager(num_blocks, free_list_seed=5))

    def _parts(self, role: str) -> Parts:
        late = self.ahead and role == "decode"
        runner: Any = LateRunner(NUM_BLOCKS, self._meanwhile) if late else WrittenRunner(NUM_BLOCKS)
        transport = FaultyTransport(runner.tensor, role, self.fabric)
        transfers = TurnedTransfers([transport], clock=self.loop.time)
        setattr(self, f"{role}_transport", transport)
        identity = Identity(role.encode().ljust(16))
        return Parts(
            identity,
            LoadedModel(role, runner, LAYOUT, LIMITS, b"", b"", STEP_TOKENS),
            transfers,
            Metrics(),
            _fail,
        )

    prefill_transport: FaultyTransport
    decode_transport: FaultyTransport

    @property
    def with_prefill(self) -> list[Try]:
        return [each for each in self.tries if each.prefill is not None]

    @property
    def submitted(self) -> list[Try]:
        return [each for each in self.tries if each.submitted]

    # What a gateway does.

    def new_try(self, token_ids: list[int], num_choices: int, max_tokens: int) -> Try:
        made = Try(next(self._numbers), token_ids, tuple(range(num_choices)), max_tokens)
        self.tries.append(made)
        return made

    def send_prefill(self, made: Try) -> None:
        request = prefill_pb2.PrefillRequest(hand_off=True, **made.fields)
        leg = Leg.from_pb(request, LIMITS)
        try:
            made.prefill = self._run(self.prefill.submit, leg, hand_off=True, parent=None)
        except DuplicateAttempt:
            # Its Pull has waited for it too long already, and left a tombstone (protocol 3.2).
            made.refused = True

    def send_decode(self, made: Try) -> None:
        submit = decode_pb2.Submit(
            handle=made.number,
            prefill_address="prefill",
            prefill_boot_id=self.prefill_parts.identity.boot_id,
            **made.fields,
        )
        made.submitted = True
        self._run(self.decode.submit, self.session, submit)

    def cancel_prefill(self, made: Try) -> None:
        error = Cancelled("the call has ended", reason="PREFILL_ENDED")
        self._run(self.prefill.end, made.prefill, error)

    def cancel_decode(self, made: Try) -> None:
        self._run(self.decode.cancel, self.session, made.number, ())

    # What time and the machines do.

    def settle(self) -> None:
        self.loop.settle()

    def turn(self, role: str) -> bool:
        worker = self.prefill if role == "prefill" else self.decode
        engine: Any = worker._engine
        worked: bool = engine.turn()
        self.settle()
        return worked

    def move_all(self) -> bool:
        """Delivers every message and completes every read; False where there was nothing to do."""
        moved = False
        while ways := self.wire.deliverable:
            ways[0][0].deliver(ways[0][1])
            self.settle()
            moved = True
        for ticket in sorted(self.decode_transport.posted):
            self.decode_transport.complete(ticket)
            moved = True
        for role in ("prefill", "decode"):
            self.poll(role)
        return moved

    def run_smoothly(self) -> bool:
        """One round of everything; False once nothing moves any more."""
        moved = self.move_all()
        for role in ("prefill", "decode"):
            moved = self.turn(role) or moved
        return moved

    def _meanwhile(self) -> None:
        if self.hurried:
            self.settle()
            for _ in range(3):
                self.move_all()

    def poll(self, role: str) -> None:
        transfers: Any = getattr(self, f"{role}_parts").transfers
        transfers.take_turn()
        self.settle()

    def _run(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        async def call() -> Any:
            return function(*arguments, **options)

        result = self.loop.run_until_complete(call())
        self.settle()
        return result

    # What must always hold.

    def _hear(self, response: decode_pb2.SessionResponse) -> None:
        if response.HasField("finished"):
            made = self._find(response.finished.handle)
            made.finished = made.finished or response.finished
        step = response.step
        for handle, choice, token in zip(step.handles, step.choices, step.token_ids, strict=True):
            self._take(self._find(handle), choice, token)

    def _take(self, made: Try, choice: int, token: int) -> None:
        """Protocol 3.6: a token leaves only after a lease that was alive to the end."""
        assert made.prefill is not None and made.prefill.ended.done(), "token before the release"
        assert made.prefill_error() is None, made.prefill_error()
        assert made.finished is None, "token after the last word"
        tokens = made.tokens.setdefault(choice, [next_token(made.token_ids)])
        assert token == next_token([*made.token_ids, *tokens]), (made, choice, token)
        tokens.append(token)

    def _find(self, handle: int) -> Try:
        return next(made for made in self.tries if made.number == handle)

    def check(self) -> None:
        """Rule 4.6, who owns which block, and where reads may still write."""
        assert self.wire.bugs == []
        assert self.faults == []
        for manager in self._managers.values():
            manager.check()
        self._check_owners("prefill", self._prefill_tables())
        self._check_owners("decode", self._decode_tables())
        blocks = self._managers["decode"]._blocks
        in_flight = [*self.decode_transport.posted.values(), *self.decode_transport.undead]
        for block in (block for posted in in_flight for block in posted.destinations):
            assert blocks[block].state in ("reserved", "fenced"), (block, blocks[block])

    def _check_owners(self, role: str, tables: list[list[int]]) -> None:
        """Every reference is in one table, and the other way round: none twice, none lost."""
        held = Counter(block for table in tables for block in table)
        for block_id, block in self._managers[role]._blocks.items():
            assert block.num_refs + block.reserved == held[block_id], (role, block_id, block)

    def _prefill_tables(self) -> list[list[int]]:
        scheduler = self.prefill._stepper.scheduler
        stages = (scheduler._computing, scheduler._computed, scheduler._stopped)
        return [each.request.block_table for stage in stages for each in stage.values()]

    def _decode_tables(self) -> list[list[int]]:
        scheduler = self.decode._stepper._scheduler
        pulling = [
            table
            for each in scheduler._pulling.values()
            for table in (each.prompt_blocks, each.spare_blocks)
        ]
        running = [
            request.block_table for each in scheduler._running.values() for request in each.requests
        ]
        return [*pulling, *running]

    def check_all_back(self) -> None:
        """Nothing is held but what a read may still write to, and what was read along with it."""
        undead = self.decode_transport.undead
        for role, manager in self._managers.items():
            counts = manager.counts()
            assert (counts.leased, counts.used, counts.reserved) == (0, 0, 0), (role, counts)
            if role == "prefill" or not undead:
                assert counts.fenced == 0, (role, counts)

    def give_all_up(self) -> None:
        for made in self.tries:
            if made.prefill is not None:
                self.cancel_prefill(made)
        self._run(self.decode.close_session, self.session)
        for role in ("prefill", "decode"):
            # What was given up comes back in the next step, or when its reads have ended.
            self.turn(role)
        for ticket in sorted(self.decode_transport.posted):
            self.decode_transport.complete(ticket)
        self.poll("decode")
        while self.turn("decode"):
            pass

    def close(self) -> None:
        self.loop.run_until_complete(self.decode.pairings.close())
        self.loop.run_until_complete(self.decode._consumer.close())
        self.wire.break_off()
        self.settle()
        self.loop.close()
        self._wiring.stop()


def _fail(error: BaseException) -> None:
    raise error
