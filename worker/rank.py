"""``python -m worker.rank PID FD FD``: a rank of a worker, whose part of the pool can be read."""

import sys
from multiprocessing.connection import Connection

from engine.model_runner import ModelRunner
from engine.parallel.rank import run_rank
from kvtransfer.transport.nixl import NixlTransport
from kvtransfer.transport.server import serve_transport
from worker.switch_interval import SWITCH_INTERVAL


def serve_pool(runner: ModelRunner, pipe: Connection) -> None:
    """Lets rank 0 read into, and offer, this rank's pool."""
    serve_transport(pipe, lambda name: NixlTransport(runner.kv_cache.tensor, name))


if __name__ == "__main__":
    sys.setswitchinterval(SWITCH_INTERVAL)
    run_rank(serve_pool)
