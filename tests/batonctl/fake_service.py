"""A small real service for the supervisor's tests: grpc.health.v1 and a few ways to behave badly.

fake_service.py ADDRESS READINESS_NAME JOURNAL [die-at-start | never-ready | deaf]
Appends one line to JOURNAL for each thing it does, so that tests can see the order of a drain.
"""

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc


def main() -> None:
    address, readiness, journal, *behaviour = sys.argv[1:]
    name = readiness.rsplit(".", 1)[-1]

    def note(what: str) -> None:
        with Path(journal).open("a") as file:
            file.write(f"{name} {what} {os.getpid()}\n")

    note("started")
    print(f"{name} listens at {address}", flush=True)
    if "die-at-start" in behaviour:
        sys.exit("the setting is wrong")
    stop = Event()
    deaf = "deaf" in behaviour
    signal.signal(signal.SIGTERM, lambda *_: note("deaf") if deaf else stop.set())
    servicer = health.HealthServicer()
    server = grpc.server(ThreadPoolExecutor(4))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    assert server.add_insecure_port(address)
    server.start()
    if "never-ready" not in behaviour:
        servicer.set(readiness, health_pb2.HealthCheckResponse.SERVING)
    stop.wait()
    servicer.enter_graceful_shutdown()
    server.stop(0.5).wait()
    note("stopped")


if __name__ == "__main__":
    main()
