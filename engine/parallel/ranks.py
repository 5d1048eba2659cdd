"""Rank 0's hold on the others: starts them, tells them what to compute, and watches them."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict
from multiprocessing.connection import Connection

from engine.config import EngineConfig
from engine.errors import RankLost
from engine.parallel.group import Group
from engine.parallel.step_message import Array, encode

MODULE = "engine.parallel.rank"
# Seconds that a rank may take to end once it was told to; it may wait for rank 0 in a step.
_END_SECONDS = 1.0
_NOTICE_SECONDS = 1.0


class Ranks:
    """Processes that run ``module``, one for each rank but this one.

    They end when this process does, whatever way that is. ``on_lost`` is called, on a thread of its
    own, for the first that ends before it is told to.
    """

    def __init__(
        self,
        config: EngineConfig,
        module: str = MODULE,
        on_lost: Callable[[RankLost], None] = lambda lost: None,
    ) -> None:
        """Returns once all are connected. Raises RankLost where one could not be."""
        self.lost: RankLost | None = None
        self._module = module
        self._on_lost = on_lost
        self._noticing = threading.Lock()
        self._closing = False
        self._over = threading.Event()
        self.group: Group | None = None
        size = config.tensor_parallel_size
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pipes: list[Connection] = []
        self._second_pipes: list[Connection] = []
        # Held from now on: while the others start, anybody might take a port that was only free.
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            for rank in range(1, size):
                self._start(config, rank, port)
            for pipe in self._pipes:
                self._await_hello(pipe)
            self.group = join_group(config, 0, port, listener.detach())

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self._processes)

    @property
    def second_pipes(self) -> tuple[Connection, ...]:
        """To what the program of each rank does beside computing; they end with the process."""
        return tuple(self._second_pipes)

    def send(self, kind: int, arrays: Sequence[Array] = ()) -> None:
        """Tells every rank what to compute next. Raises RankLost where one is gone."""
        self.check()
        message = encode(kind, arrays)
        try:
            for pipe in self._pipes:
                pipe.send_bytes(message)
        except OSError as error:
            raise self._reason(f"a rank does not listen any more: {error}") from error

    def check(self) -> None:
        """Raises RankLost where a rank has ended."""
        if self.lost is not None:
            raise self.lost

    def await_word(self) -> None:
        """Returns once every rank has done what it was told to and asked to confirm."""
        try:
            for pipe in self._pipes:
                pipe.recv_bytes()
        except (EOFError, OSError) as error:
            raise self._reason("a rank does not answer any more") from error

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """What fails meanwhile leaves the others in the middle of a step: raises RankLost in its
        place, with the end of a rank as the reason where there was one."""
        try:
            yield
        except RankLost:
            raise
        except Exception as error:
            raise self._reason(f"rank 0 failed in a step of all ranks: {error}") from error

    def close(self) -> None:
        """Ends the ranks."""
        with self._noticing:
            self._closing = True
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self.group is not None:
            self.group.close(broken=self.lost is not None)
            self.group = None

    def _start(self, config: EngineConfig, rank: int, port: int) -> None:
        ours, theirs = socket.socketpair()
        second, their_second = socket.socketpair()
        started: Future[subprocess.Popen[bytes]] = Future()
        with theirs, their_second:
            descriptors = theirs.fileno(), their_second.fileno()
            watch = threading.Thread(
                target=self._watch, args=(rank, descriptors, started), daemon=True
            )
            watch.start()
            self._processes.append(started.result())
        pipe = Connection(ours.detach())
        self._pipes.append(pipe)
        self._second_pipes.append(Connection(second.detach()))
        pipe.send_bytes(json.dumps({"config": asdict(config), "rank": rank, "port": port}).encode())

    def _await_hello(self, pipe: Connection) -> None:
        """A rank that is there; to connect with one that is not would take forever."""
        try:
            pipe.recv_bytes()
        except (EOFError, OSError) as error:
            reason = self._reason("a rank ended while it started")
            self.close()
            raise reason from error

    def _reason(self, otherwise: str) -> RankLost:
        """A connection breaks a moment before its process has ended."""
        self._over.wait(_NOTICE_SECONDS)
        return self.lost or RankLost(otherwise)

    def _watch(
        self, rank: int, descriptors: tuple[int, int], started: "Future[subprocess.Popen[bytes]]"
    ) -> None:
        """Runs a rank. The kernel ends it with the thread that started it, which is this one."""
        try:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    self._module,
                    str(os.getpid()),
                    *map(str, descriptors),
                ],
                pass_fds=descriptors,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(process)
        code = process.wait()
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        with self._noticing:
            if self._closing or self.lost is not None:
                return
            self.lost = RankLost(f"rank {rank} {how}")
        self._over.set()
        self._on_lost(self.lost)


def join_group(config: EngineConfig, rank: int, port: int, listener: int | None = None) -> Group:
    """Connects this rank with all others, which must be on their way. ``listener``: see Group."""
    size = config.tensor_parallel_size
    if config.device == "cuda":
        from engine.gpu.group import GpuGroup

        return GpuGroup(rank, size, port, listener)
    return Group(rank, size, port, "gloo", listener)
