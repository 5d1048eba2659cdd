"""Random interleavings of hand-offs between both workers, with faults (protocol 3.6, 4.1, 4.6).

A token is only right if every KV value below it is. So one that was computed from blocks that
were read too late, in part, or from the wrong place, shows; so does one that left before the
release.
"""

import logging
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from baton.v1.decode_pb2 import OUTCOME_COMPLETED
from tests.kvtransfer.machine.faulty_transport import FaultyTransport
from tests.kvtransfer.machine.house import House
from tests.kvtransfer.machine.stand_ins import Try
from tests.kvtransfer.machine.written_model import answer

# Few first tokens, so that prompts share prefixes.
PROMPTS = st.tuples(st.integers(1, 2), st.integers(1, 14)).map(
    lambda drawn: [drawn[0], *range(2, drawn[1] + 1)]
)
LEGS = st.sampled_from(["both", "prefill", "decode"])
TROUBLES = (
    *("cancel prefill", "cancel decode", "break off", "wait a little", "wait long"),
    *("fail a read", "fail a read without an end", "write late"),
)


class HandoffMachine(RuleBasedStateMachine):
    """What gateways, the wire, the transport, the engines and time may do, in any order.

    Only one rule makes trouble, so that most attempts get somewhere.
    """

    checksums = False
    ahead = False

    def __init__(self) -> None:
        super().__init__()
        self.house = House(checksums=self.checksums, ahead=self.ahead)

    @property
    def transport(self) -> FaultyTransport:
        return self.house.decode_transport

    @property
    def without_prefill(self) -> list[Try]:
        return [each for each in self.house.tries if each.prefill is None and not each.refused]

    @property
    def without_decode(self) -> list[Try]:
        return [each for each in self.house.tries if not each.submitted]

    # What gateways do.

    @precondition(lambda self: len(self.house.tries) < 12)
    @rule(prompt=PROMPTS, num_choices=st.integers(1, 2), max_tokens=st.integers(2, 6), legs=LEGS)
    def begin(self, prompt: list[int], num_choices: int, max_tokens: int, legs: str) -> None:
        made = self.house.new_try(prompt, num_choices, max_tokens)
        if legs != "decode":
            self.house.send_prefill(made)
        if legs != "prefill":
            self.house.send_decode(made)

    @precondition(lambda self: self.without_prefill)
    @rule()
    def send_prefill(self) -> None:
        self.house.send_prefill(self.without_prefill[0])

    @precondition(lambda self: self.without_decode)
    @rule()
    def send_decode(self) -> None:
        self.house.send_decode(self.without_decode[0])

    # What the machines and the wire do.

    @rule()
    def step_prefill(self) -> None:
        self.house.turn("prefill")

    @rule()
    def step_decode(self) -> None:
        self.house.turn("decode")

    @rule()
    def poll(self) -> None:
        self.house.poll("decode")

    @precondition(lambda self: self.house.wire.deliverable)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        ways = self.house.wire.deliverable
        call, inbox = ways[data.draw(st.integers(0, len(ways) - 1))]
        call.deliver(inbox)
        self.house.settle()

    @precondition(lambda self: self.house.wire.deliverable)
    @rule()
    def deliver_all(self) -> None:
        while ways := self.house.wire.deliverable:
            ways[0][0].deliver(ways[0][1])
            self.house.settle()

    @precondition(lambda self: self.transport.posted)
    @rule(data=st.data())
    def end_a_read(self, data: st.DataObject) -> None:
        self.transport.complete(data.draw(st.sampled_from(sorted(self.transport.posted))))
        self.house.poll("decode")

    # What goes wrong.

    @rule(data=st.data())
    def trouble(self, data: st.DataObject) -> None:
        posted = sorted(self.transport.posted)
        match data.draw(st.sampled_from(TROUBLES)):
            case "cancel prefill" if tries := self.house.with_prefill:
                self.house.cancel_prefill(data.draw(st.sampled_from(tries)))
            case "cancel decode" if tries := self.house.submitted:
                self.house.cancel_decode(data.draw(st.sampled_from(tries)))
            case "break off":
                self.house.wire.break_off()
                self.house.settle()
            case "wait a little":
                self.house.loop.advance(2.5)
            case "wait long":
                self.house.loop.advance(11.0)
            case "fail a read" if posted:
                self.transport.fail(data.draw(st.sampled_from(posted)), final=True)
            case "fail a read without an end" if posted and len(self.transport.undead) < 2:
                self.transport.fail(data.draw(st.sampled_from(posted)), final=False)
            case "write late" if self.transport.undead:
                self.transport.write_late(data.draw(st.sampled_from(self.transport.undead)))

    # What must hold.

    @invariant()
    def books_are_right(self) -> None:
        self.house.check()

    def teardown(self) -> None:
        try:
            self.end_well()
        finally:
            self.house.close()

    def end_well(self) -> None:
        """Whatever has happened, every attempt ends, with the right tokens or none missing."""
        house = self.house
        for _ in range(100):
            if not house.run_smoothly() and not house.loop.has_timers:
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
    """Bytes are lost or changed on the way as well, and checksums are there against it."""

    checksums = True

    @precondition(lambda self: self.transport.posted)
    @rule(data=st.data(), lose=st.booleans())
    def spoil_a_read(self, data: st.DataObject, lose: bool) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.transport.posted)))
        self.transport.spoil(ticket, lose=lose)
        self.house.poll("decode")


class AheadMachine(HandoffMachine):
    """The decode engine launches a step before it has the last one's tokens (protocol 4.4)."""

    ahead = True

    @rule()
    def step_decode_while_others_go_on(self) -> None:
        self.house.hurried = True
        self.house.turn("decode")
        self.house.hurried = False


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Every walk ends attempts by the dozen."""
    caplog.set_level(logging.CRITICAL)


SETTINGS = settings(
    max_examples=100,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestHandoffs = HandoffMachine.TestCase
TestHandoffs.settings = SETTINGS
TestSpoiledHandoffs = SpoilingMachine.TestCase
TestSpoiledHandoffs.settings = SETTINGS
TestHandoffsAhead = AheadMachine.TestCase
TestHandoffsAhead.settings = SETTINGS


@pytest.mark.parametrize("decode_first", [False, True], ids=["prefill first", "decode first"])
def test_prompts_that_fill_both_pools_in_opposite_orders_all_end(decode_first: bool) -> None:
    """Protocol 5.7: nobody waits for a block of one pool with what others need of the other one."""
    machine = HandoffMachine()
    house = machine.house
    # One of them takes most of a pool; no two begin alike.
    tries = [house.new_try([number, *range(20, 33)], 2, 6) for number in range(12)]
    sends = [(house.send_prefill, tries), (house.send_decode, tries[::-1])]
    for send, order in reversed(sends) if decode_first else sends:
        for made in order:
            send(made)
    machine.teardown()
    ended = Counter(made.finished.outcome for made in tries if made.finished is not None)
    assert ended.total() == len(tries)
    assert ended[OUTCOME_COMPLETED] > 0
