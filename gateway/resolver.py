"""Worker targets as configured, and the addresses behind them now."""

import asyncio
import ipaddress
import socket
from collections.abc import Sequence

_DNS_SCHEME = "dns:///"


class TargetError(ValueError):
    """A configured worker target is malformed; the message names it."""


class Resolver:
    """Resolves a list of targets: ``host:port`` stands for itself, ``dns:///name:port`` for every
    address the name has at the moment."""

    def __init__(self, targets: Sequence[str]) -> None:
        """Raises TargetError for a target without a port."""
        self._fixed: list[str] = []
        self._names: list[tuple[str, int]] = []
        for target in targets:
            host, port = _split(target)
            if target.startswith(_DNS_SCHEME):
                self._names.append((host, port))
            else:
                self._fixed.append(f"{host}:{port}")

    @property
    def is_fixed(self) -> bool:
        """Whether the addresses never change."""
        return not self._names

    async def resolve(self) -> list[str]:
        """Addresses known now, without duplicates. A name that does not resolve adds none."""
        loop = asyncio.get_running_loop()
        addresses = list(self._fixed)
        for name, port in self._names:
            try:
                found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
            except OSError:
                continue
            addresses += sorted(_join(str(entry[4][0]), port) for entry in found)
        return list(dict.fromkeys(addresses))


def _split(target: str) -> tuple[str, int]:
    host, colon, port = target.removeprefix(_DNS_SCHEME).rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise TargetError(f"worker target {target!r} is not host:port or dns:///name:port")
    return host, int(port)


def _join(address: str, port: int) -> str:
    if ipaddress.ip_address(address.partition("%")[0]).version == 6:
        return f"[{address}]:{port}"
    return f"{address}:{port}"
