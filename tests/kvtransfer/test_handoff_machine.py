"""Random interleavings of hand-offs between both workers, with faults (protocol 3.6, 4.1, 4.6).

A token is only right if every KV value below it is. So one that was computed from blocks that
were read too late, in part, or from the wrong place, shows; so does one that left before the
release.
"""

import logging

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from baton.v1.decode_pb2 import OUTCOME_COMPLETED
from tests.kvtransfer.machine.faulty_transport import FaultyTransport
from tests.kvtransfer.machine.house import House, Try
from tests.kvtransfer.machine.written_model import answer

# Few first tokens, so that prompts share prefixes.
PROMPTS = st.tuples(st.integers(1, 2), st.integers(1, 14)).map(
    lambda drawn: [drawn[0], *range(2, drawn[1] + 1)]
)
ROLES = st.sampled_from(["prefill", "decode"])


class HandoffMachine(RuleBasedStateMachine):
    """What gateways, the wire, the transport, the engines and time may do, in any order."""

    checksums = False

    def __init__(self) -> None:
        super().__init__()
        self.house = House(checksums=self.checksums)

    @property
    def transport(self) -> FaultyTransport:
        return self.house.decode_transport

    @property
    def without_prefill(self) -> list[Try]:
        return [each for each in self.house.tries if each.prefill is None and not each.refused]

    @property
    def with_prefill(self) -> list[Try]:
        return [each for each in self.house.tries if each.prefill is not None]

    def submitted(self, wanted: bool) -> list[Try]:
        return [each for each in self.house.tries if each.submitted is wanted]

    # What gateways do.

    @precondition(lambda self: len(self.house.tries) < 8)
    @rule(prompt=PROMPTS, num_choices=st.integers(1, 2), max_tokens=st.integers(2, 6))
    def begin(self, prompt: list[int], num_choices: int, max_tokens: int) -> None:
        self.house.new_try(prompt, num_choices, max_tokens)

    @precondition(lambda self: self.without_prefill)
    @rule(data=st.data())
    def send_prefill(self, data: st.DataObject) -> None:
        self.house.send_prefill(data.draw(st.sampled_from(self.without_prefill)))

    @precondition(lambda self: self.submitted(False))
    @rule(data=st.data())
    def send_decode(self, data: st.DataObject) -> None:
        self.house.send_decode(data.draw(st.sampled_from(self.submitted(False))))

    @precondition(lambda self: self.with_prefill)
    @rule(data=st.data())
    def cancel_prefill(self, data: st.DataObject) -> None:
        self.house.cancel_prefill(data.draw(st.sampled_from(self.with_prefill)))

    @precondition(lambda self: self.submitted(True))
    @rule(data=st.data())
    def cancel_decode(self, data: st.DataObject) -> None:
        self.house.cancel_decode(data.draw(st.sampled_from(self.submitted(True))))

    # What the machines, the wire and time do.

    @rule(role=ROLES)
    def step(self, role: str) -> None:
        self.house.turn(role)

    @rule(role=ROLES)
    def poll(self, role: str) -> None:
        self.house.poll(role)

    @precondition(lambda self: self.house.wire.deliverable)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        ways = self.house.wire.deliverable
        call, inbox = ways[data.draw(st.integers(0, len(ways) - 1))]
        call.deliver(inbox)
        self.house.settle()

    @rule()
    def go_on(self) -> None:
        """Everything that can move without a fault does, for a while."""
        self.run_smoothly(rounds=3)

    @rule(seconds=st.sampled_from([0.1, 1.5, 3.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.house.loop.advance(seconds)

    @rule()
    def break_off(self) -> None:
        self.house.wire.break_off()
        self.house.settle()

    # What becomes of reads.

    @precondition(lambda self: self.transport.posted)
    @rule(data=st.data())
    def end_a_read(self, data: st.DataObject) -> None:
        self.transport.complete(data.draw(st.sampled_from(sorted(self.transport.posted))))

    @precondition(lambda self: self.transport.posted and len(self.transport.undead) < 2)
    @rule(data=st.data(), final=st.booleans())
    def fail_a_read(self, data: st.DataObject, final: bool) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.transport.posted)))
        self.transport.fail(ticket, final=final)

    @precondition(lambda self: self.transport.undead)
    @rule(data=st.data())
    def write_late(self, data: st.DataObject) -> None:
        self.transport.write_late(data.draw(st.sampled_from(self.transport.undead)))

    # What must hold.

    @invariant()
    def books_are_right(self) -> None:
        self.house.check()

    def run_smoothly(self, rounds: int) -> bool:
        """False once nothing moves any more."""
        house, moved = self.house, False
        for _ in range(rounds):
            while ways := house.wire.deliverable:
                ways[0][0].deliver(ways[0][1])
                house.settle()
                moved = True
            for ticket in sorted(self.transport.posted):
                self.transport.complete(ticket)
                moved = True
            for role in ("prefill", "decode"):
                house.poll(role)
                moved = house.turn(role) or moved
        return moved

    def teardown(self) -> None:
        try:
            self.end_well()
        finally:
            self.house.close()

    def end_well(self) -> None:
        """Whatever has happened, every attempt ends, with the right tokens or none missing."""
        house = self.house
        for _ in range(100):
            if not self.run_smoothly(rounds=1) and not house.loop.has_timers:
                break
            house.loop.advance(0.5)
        self.books_are_right()
        for made in house.tries:
            ended = made.finished is not None or not made.submitted
            assert ended, f"{made} hangs"
            if made.finished is not None and made.finished.outcome == OUTCOME_COMPLETED:
                expected = answer(made.token_ids, made.max_tokens)
                assert list(made.tokens.values()) == [expected] * len(made.choices), made
        house.give_all_up()
        self.books_are_right()
        house.check_all_back()


class SpoilingMachine(HandoffMachine):
    """The same with bytes that are lost or changed on the way, and checksums against it."""

    checksums = True

    @precondition(lambda self: self.transport.posted)
    @rule(data=st.data(), lose=st.booleans())
    def spoil_a_read(self, data: st.DataObject, lose: bool) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.transport.posted)))
        self.transport.spoil(ticket, lose=lose)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Every walk ends attempts by the dozen."""
    caplog.set_level(logging.CRITICAL)


SETTINGS = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestHandoffs = HandoffMachine.TestCase
TestHandoffs.settings = SETTINGS
TestSpoiledHandoffs = SpoilingMachine.TestCase
TestSpoiledHandoffs.settings = SETTINGS
