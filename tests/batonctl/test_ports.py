"""Finding free ports and telling taken ones."""

import socket

from batonctl.ports import METRICS_OFFSET, find_free_ports, is_free


def test_a_port_shared_by_reuseport_counts_as_taken() -> None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert not is_free(port)
    assert is_free(port)


def test_free_ports_are_distinct_with_their_metrics_ports() -> None:
    ports = find_free_ports(8)
    both = {port for first in ports for port in (first, first + METRICS_OFFSET)}
    assert len(both) == 16
    assert all(is_free(port) for port in both)
