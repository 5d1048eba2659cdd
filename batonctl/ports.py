"""TCP ports on loopback: whether one is taken, and where a run of free ones is."""

import random
import socket

METRICS_OFFSET = 1000
# Below the kernel's default range for outgoing connections, which would otherwise take a port
# between our look and the service's bind.
_FREE_RANGE = range(20000, 31000)
LOOPBACK = "127.0.0.1"


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Whether nobody listens on the port.

    Without SO_REUSEPORT, unlike the services: two stacks must not share a port unnoticed.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def find_free_ports(count: int) -> list[int]:
    """Distinct ports that are free now, and whose metrics ports are free as well."""
    found: list[int] = []
    for port in random.sample(_FREE_RANGE, k=min(len(_FREE_RANGE), 50 * count + 200)):
        clash = {port, port - METRICS_OFFSET, port + METRICS_OFFSET} & set(found)
        if not clash and is_free(port) and is_free(port + METRICS_OFFSET):
            found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"only {len(found)} of {count} free ports found")
