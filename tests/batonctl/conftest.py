"""Small real services for the supervisor, and a trace store of the test's own."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from batonctl.ports import find_free_ports
from batonctl.service_spec import Role, ServiceSpec

FAKE_SERVICE = Path(__file__).with_name("fake_service.py")


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Where fake services write what they do."""
    path = tmp_path / "journal"
    path.touch()
    return path


@pytest.fixture
def make_specs(journal: Path) -> Callable[..., list[ServiceSpec]]:
    """Specs of one fake service per role; keyword arguments give a role its bad behaviour."""

    def make(**behaviour: str) -> list[ServiceSpec]:
        ports = find_free_ports(len(Role))
        specs = []
        for role, port in zip(Role, ports, strict=True):
            address = f"127.0.0.1:{port}"
            command = [sys.executable, str(FAKE_SERVICE), address, role.health_service]
            command += [str(journal), *behaviour.get(role, "").split()]
            specs.append(ServiceSpec(role, role, tuple(command), address, dict(os.environ)))
        return specs

    return make


@pytest.fixture
def trace_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where spans go while the test runs, by this process and by those it starts."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("BATON_TRACE_DIR", str(tmp_path / "traces"))
    return tmp_path / "traces"
