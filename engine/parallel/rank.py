"""``python -m engine.parallel.rank FD``: a rank that computes what rank 0 tells it through FD."""

import json
import os
import signal
import sys
from multiprocessing.connection import Connection

from engine.config import EngineConfig
from engine.model_runner import follow_steps
from engine.parallel.ranks import join_group


def main() -> None:
    """Runs until rank 0 lets go of the pipe."""
    # Ctrl-C goes to every process of a terminal; it is rank 0 that says when to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe = Connection(int(sys.argv[1]))
    order = json.loads(pipe.recv_bytes())
    config = EngineConfig(**order["config"])
    pipe.send_bytes(b"here")
    if config.device == "cuda":
        import torch

        torch.cuda.set_device(order["rank"])
    follow_steps(config, join_group(config, order["rank"], order["port"]), pipe.recv_bytes)


if __name__ == "__main__":
    main()
    # To tear down what the ranks share would wait for rank 0, which does not.
    os._exit(0)
