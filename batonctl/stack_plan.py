"""Which processes `baton up` runs, with which flags on which ports."""

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from batonctl.errors import InputError
from batonctl.gpus import share_gpus, visible_gpus
from batonctl.ports import LOOPBACK, METRICS_OFFSET, find_free_ports, is_free
from batonctl.service_spec import Role, ServiceSpec

_MODULES = {Role.GATEWAY: "gateway", Role.PREFILL: "prefill_svc", Role.DECODE: "decode_svc"}


@dataclass(frozen=True, slots=True)
class StackPlan:
    """A stack to run. Ports are the first of each role's run; metrics are METRICS_OFFSET above.

    Workers take turns on ``gpus``, as CUDA_VISIBLE_DEVICES names them, and get as many as their
    role's tensor-parallel size each.
    Whatever has no field here is set by the services' own environment (BATON_PREFILL_..).
    """

    model: str
    prefill_workers: int = 1
    decode_workers: int = 1
    dtype: str | None = None
    quantization: str | None = None
    prefill_tensor_parallel_size: int | None = None
    decode_tensor_parallel_size: int | None = None
    gateway_port: int = 7100
    prefill_port: int = 7110
    decode_port: int = 7120
    drain_grace: float = 30.0
    gpus: tuple[str, ...] = ()

    def services(self) -> list[ServiceSpec]:
        """The processes, gateway first."""
        prefill = [self._worker(Role.PREFILL, i) for i in range(self.prefill_workers)]
        decode = [self._worker(Role.DECODE, i) for i in range(self.decode_workers)]
        peers = [
            f"--prefill-addresses={','.join(spec.address for spec in prefill)}",
            f"--decode-addresses={','.join(spec.address for spec in decode)}",
        ]
        return [self._spec(Role.GATEWAY, "gateway", self.gateway_port, peers), *prefill, *decode]

    def _worker(self, role: Role, index: int) -> ServiceSpec:
        is_prefill = role == Role.PREFILL
        first_port = self.prefill_port if is_prefill else self.decode_port
        num_workers = self.prefill_workers + self.decode_workers
        size = self.prefill_tensor_parallel_size if is_prefill else self.decode_tensor_parallel_size
        flags = [f"--workers-on-host={num_workers}"]
        env = {}
        if self.gpus:
            number = index if is_prefill else self.prefill_workers + index
            sizes = [self.prefill_tensor_parallel_size or 1] * self.prefill_workers
            sizes += [self.decode_tensor_parallel_size or 1] * self.decode_workers
            env["CUDA_VISIBLE_DEVICES"], num_sharing = share_gpus(self.gpus, sizes)[number]
            flags.append(f"--workers-on-device={num_sharing}")
        if self.dtype is not None:
            flags.append(f"--dtype={self.dtype}")
        if self.quantization is not None:
            flags.append(f"--quantization={self.quantization}")
        if size is not None:
            flags.append(f"--tensor-parallel-size={size}")
        return self._spec(role, f"{role}-{index}", first_port + index, flags, env)

    def _spec(
        self,
        role: Role,
        name: str,
        port: int,
        flags: list[str],
        env: Mapping[str, str] = MappingProxyType({}),
    ) -> ServiceSpec:
        # -P: a folder named like a service in the user's directory must not be run instead.
        command = (sys.executable, "-P", "-m", _MODULES[role])
        settings = [
            f"--model={self.model}",
            f"--host={LOOPBACK}",
            f"--port={port}",
            f"--metrics-port={port + METRICS_OFFSET}",
            f"--drain-grace={self.drain_grace}",
        ]
        return ServiceSpec(
            name=name,
            role=role,
            command=(*command, *settings, *flags),
            address=f"{LOOPBACK}:{port}",
            env=os.environ | env,
        )

    def check_ports(self) -> None:
        """InputError if two services would share a port, or somebody else has one."""
        owners: dict[int, str] = {}
        for port, owner, flag in self._ports():
            if port > 65535:
                raise InputError(f"port {port} for {owner} does not exist", hint=_choose(flag))
            if port in owners:
                raise InputError(
                    f"{owners[port]} and {owner} would share port {port}", hint=_choose(flag)
                )
            owners[port] = owner
            if not is_free(port):
                raise InputError(
                    f"port {port} for {owner} is taken by another process",
                    hint=f"{_choose(flag)}, or stop what listens there (ss -ltnp 'sport = {port}')",
                )

    def _ports(self) -> Iterator[tuple[int, str, str]]:
        rows = [(Role.GATEWAY, self.gateway_port, 1, "--gateway-port")]
        rows.append((Role.PREFILL, self.prefill_port, self.prefill_workers, "--prefill-port"))
        rows.append((Role.DECODE, self.decode_port, self.decode_workers, "--decode-port"))
        for role, first, count, flag in rows:
            for index in range(count):
                name = role if role == Role.GATEWAY else f"{role}-{index}"
                yield first + index, name, flag
                yield first + index + METRICS_OFFSET, f"the metrics of {name}", flag


def on_free_ports(model: str, drain_grace: float) -> StackPlan:
    """One worker of each role, out of the way of whatever else runs."""
    gateway, prefill, decode = find_free_ports(3)
    return StackPlan(
        model=model,
        gateway_port=gateway,
        prefill_port=prefill,
        decode_port=decode,
        drain_grace=drain_grace,
        gpus=tuple(visible_gpus()),
    )


def _choose(flag: str) -> str:
    return f"choose another one with {flag}"
