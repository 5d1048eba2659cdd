"""The transport of another rank: in this process, but at the other end of a pipe."""

import multiprocessing
import threading
from collections.abc import Callable

import torch

from kvtransfer.transport.base import Transport
from kvtransfer.transport.local import LocalFabric, LocalTransport
from kvtransfer.transport.remote import RemoteTransport
from kvtransfer.transport.server import serve_transport


def remote_transport(pool: torch.Tensor, fabric: LocalFabric, name: str) -> RemoteTransport:
    """Over ``pool``, on the fabric."""
    return served(lambda agent_name: LocalTransport(pool, agent_name, fabric), name)


def served(open_transport: Callable[[str], Transport], name: str) -> RemoteTransport:
    """What ``open_transport`` makes, worked through a pipe."""
    ours, theirs = multiprocessing.Pipe()

    def serve() -> None:
        serve_transport(theirs, lambda agent_name, _: open_transport(agent_name))

    threading.Thread(target=serve, daemon=True).start()
    return RemoteTransport(ours, name, "local")
