"""``python -m engine.parallel.rank PID FD FD``: a rank that computes what rank 0, PID, tells it.

The first descriptor is a pipe with what to compute, the second one with whatever else the program
of a rank does for rank 0.
"""

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import NoReturn

from engine.config import EngineConfig
from engine.model_runner import ModelRunner, follow_steps
from engine.parallel.ranks import join_group
from engine.parent_process import end_with_parent


def run_rank(beside: Callable[[ModelRunner, Connection], None] | None = None) -> NoReturn:
    """Runs until rank 0 lets go of the first pipe, or ends in whatever way.

    ``beside`` runs on a thread of its own from the moment the model is loaded, with the second
    pipe; the process ends where it fails.
    """
    # They may go to every process of a terminal or a service; it is rank 0 that says when to end.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    end_with_parent(int(sys.argv[1]))
    pipe, second = (Connection(int(descriptor)) for descriptor in sys.argv[2:4])
    try:
        _follow(pipe, second, beside)
    except BaseException:
        _fail()
    # To tear down what the ranks share would wait for rank 0, which does not.
    os._exit(0)


def _follow(
    pipe: Connection, second: Connection, beside: Callable[[ModelRunner, Connection], None] | None
) -> None:
    order = json.loads(pipe.recv_bytes())
    config = EngineConfig(**order["config"])
    pipe.send_bytes(b"here")
    if config.device == "cuda":
        import torch

        torch.cuda.set_device(order["rank"])

    def on_loaded(runner: ModelRunner) -> None:
        if beside is not None:
            _start(beside, runner, second)

    follow_steps(config, join_group(config, order["rank"], order["port"]), pipe, on_loaded)


def _start(run: Callable[..., None], *arguments: object) -> None:
    def run_or_end() -> None:
        try:
            run(*arguments)
        except BaseException:
            _fail()

    threading.Thread(target=run_or_end, name=run.__name__, daemon=True).start()


def _fail() -> NoReturn:
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    run_rank()
