"""``python -m worker.rank PID FD FD``: a rank of a worker, whose part of the pool can be read."""

import sys
from multiprocessing.connection import Connection

from engine.model_runner import ModelRunner
from engine.parallel.rank import run_rank
from kvtransfer.transport.server import serve_transport
from worker.switch_interval import SWITCH_INTERVAL
from worker.transports import open_transport


def serve_pool(runner: ModelRunner, pipe: Connection) -> None:
    """Lets rank 0 read into, and offer, this rank's pool."""
    pool = runner.kv_cache.tensor
    serve_transport(pipe, lambda name, choice: open_transport(pool, name, choice))


if __name__ == "__main__":
    sys.setswitchinterval(SWITCH_INTERVAL)
    run_rank(serve_pool)
