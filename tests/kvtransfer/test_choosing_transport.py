"""Which of several transports reads from a peer."""

import numpy as np
import pytest
import torch

from kvtransfer.errors import PeerUnreachable
from kvtransfer.transfer_thread import TransferThread
from kvtransfer.transport.base import BlockPart, Ended
from kvtransfer.transport.choosing import ChoosingTransport
from kvtransfer.transport.local import LocalFabric, LocalTransport
from kvtransfer.transport.ranked import RemoteRank
from tests.kvtransfer.peers import WAIT

WHOLE = BlockPart(16, 0, 0, 16)
RUNS = np.array([(3, 5, 2)])


class Near(LocalTransport):
    name = "near"


class Far(LocalTransport):
    name = "far"


class House:
    """A peer and a reader, with two fabrics between them; ``there`` is what the peer offers."""

    def __init__(self, there: tuple[str, ...] = ("near", "far")) -> None:
        self.near, self.far = LocalFabric(), LocalFabric()
        self.source = torch.arange(32.0).view(8, 1, 4)
        self.pool = torch.zeros(8, 1, 4)
        theirs = {
            "near": Near(self.source, "peer", self.near),
            "far": Far(self.source, "peer", self.far),
        }
        self.metadata = ChoosingTransport([theirs[name] for name in there]).metadata()
        self.reader = ChoosingTransport(
            [Near(self.pool, "us", self.near), Far(self.pool, "us", self.far)]
        )

    def connect(self) -> int:
        return self.reader.connect("peer", self.metadata, WHOLE)

    def connected(self) -> str:
        """What was chosen."""
        ticket = self.connect()
        ended: list[Ended] = []
        while not ended:
            ended = self.reader.poll()
        assert ended == [Ended(ticket)]
        return self.reader.transport_of("peer")


def test_the_preferred_transport_that_both_have_is_chosen() -> None:
    assert House().connected() == "near"
    assert House(there=("far",)).connected() == "far"
    assert House(there=("far", "near")).connected() == "near"


def test_one_that_refuses_the_peer_gives_way_to_the_next() -> None:
    house = House()
    del house.near.pools["peer"]
    assert house.connected() == "far"


def test_one_that_moves_no_byte_gives_way_to_the_next() -> None:
    house = House()
    ticket = house.connect()
    del house.near.pools["peer"]
    assert house.reader.poll() + house.reader.poll() == [Ended(ticket)]
    assert house.reader.transport_of("peer") == "far"
    house.reader.post("peer", RUNS)
    house.reader.poll()
    assert torch.equal(house.pool[5:7], house.source[3:5])


def test_a_peer_that_none_reaches_is_refused_with_the_reason_of_each() -> None:
    house = House(there=("near",))
    del house.near.pools["peer"]
    with pytest.raises(PeerUnreachable, match=r"near: there is no pool 'peer'; far: not offered"):
        house.connect()


def test_where_the_last_one_moves_no_byte_the_connection_ends_with_every_reason() -> None:
    house = House()
    ticket = house.connect()
    del house.near.pools["peer"], house.far.pools["peer"]
    (end,) = house.reader.poll()
    assert end.ticket == ticket and end.final
    assert isinstance(end.error, PeerUnreachable)
    assert "near: peer is gone; far: there is no pool" in str(end.error)
    house.reader.disconnect("peer")
    house.near.pools["peer"] = house.source
    assert house.connected() == "near"


def test_a_connection_that_was_given_up_is_not_reported() -> None:
    house = House()
    house.near.held = True
    house.connect()
    house.reader.disconnect("peer")
    house.near.held = False
    assert house.reader.poll() == []


def test_bytes_are_counted_for_the_transport_that_moved_them() -> None:
    house = House(there=("far",))
    thread = TransferThread([house.reader])
    thread.start()
    thread.connect("peer", [RemoteRank(house.metadata, 16)]).result(WAIT)
    read = thread.read("peer", [1, 2], [3, 4])
    read.done.result(WAIT)
    assert read.transport == "far"
    assert thread.bytes_read_by_transport() == {"near": 0, "far": 32}
    thread.stop()
