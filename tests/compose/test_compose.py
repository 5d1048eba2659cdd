"""compose.yaml against the code it runs."""

import importlib
import importlib.util
from typing import Any

import pytest

from batonctl.cli.app import app
from batonctl.service_spec import Role
from chassis.lifecycle import CLOSE_SECONDS
from chassis.server import ServerSettings
from chassis.settings import resolve_settings
from decode_svc.config import DecodeSettings
from gateway.config import GatewaySettings
from prefill_svc.config import PrefillSettings
from tests.compose.compose_file import FOLDER, load_compose, read_env, seconds

SETTINGS: dict[str, type[Any]] = {
    "gateway": GatewaySettings,
    "prefill": PrefillSettings,
    "decode": DecodeSettings,
}
MODULES = {"gateway": "gateway", "prefill": "prefill_svc", "decode": "decode_svc"}
METRICS_OFFSET = 1000
# Read elsewhere than in a service's settings class.
COMMON_VARIABLES = {"BATON_MODEL_DIR", "BATON_TRACE_DIR"}


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    services: dict[str, dict[str, Any]] = load_compose()["services"]
    return services


def settings_of(name: str, service: dict[str, Any]) -> Any:
    """The settings that the container's process will have."""
    return resolve_settings(SETTINGS[name], name, {}, environment(service))


def environment(service: dict[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in service.get("environment", {}).items()}


def test_every_variable_of_env_is_used() -> None:
    text = "".join(path.read_text() for path in FOLDER.glob("*.yaml"))
    assert [name for name in read_env() if f"${{{name}}}" not in text] == []


def test_all_services_are_those_of_the_code(services: dict[str, Any]) -> None:
    assert set(services) == {*SETTINGS, "pull"}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_command_starts_the_service(services: dict[str, Any], name: str) -> None:
    assert services[name]["command"] == ["python", "-m", MODULES[name]]
    assert importlib.util.find_spec(f"{MODULES[name]}.__main__") is not None


@pytest.mark.parametrize("name", SETTINGS)
def test_every_baton_variable_is_a_setting(services: dict[str, Any], name: str) -> None:
    # Refuses unknown names and wrong values, as the service itself would.
    settings_of(name, services[name])
    prefix = f"BATON_{name.upper()}_"
    strangers = {
        key
        for key in environment(services[name])
        if key.startswith("BATON_") and not key.startswith(prefix)
    }
    assert strangers <= COMMON_VARIABLES


@pytest.mark.parametrize("name", SETTINGS)
def test_services_listen_for_their_network_on_the_exposed_ports(
    services: dict[str, Any], name: str
) -> None:
    server: ServerSettings = settings_of(name, services[name]).server
    assert server.host == "0.0.0.0"
    ports = {server.port, server.port + METRICS_OFFSET}
    published = {int(entry.rsplit(":", 1)[1]) for entry in services[name].get("ports", ())}
    exposed = {int(port) for port in services[name].get("expose", ())}
    assert published | exposed == ports


def test_only_the_gateway_is_published_and_only_on_loopback(services: dict[str, Any]) -> None:
    assert [name for name, service in services.items() if "ports" in service] == ["gateway"]
    assert all(entry.startswith("127.0.0.1:") for entry in services["gateway"]["ports"])


def test_workers_share_one_network_without_a_way_out(services: dict[str, Any]) -> None:
    networks = load_compose()["networks"]
    assert networks["inside"] == {"internal": True}
    assert services["prefill"]["networks"] == services["decode"]["networks"] == ["inside"]
    assert "inside" in services["gateway"]["networks"]


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_the_gateway_looks_for_the_workers_where_they_are(
    services: dict[str, Any], role: str
) -> None:
    gateway = settings_of("gateway", services["gateway"])
    port = settings_of(role, services[role]).server.port
    assert getattr(gateway, f"{role}_addresses") == (f"dns:///{role}:{port}",)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_health_check_asks_for_the_readiness_that_the_service_reports(
    services: dict[str, Any], name: str
) -> None:
    check = services[name]["healthcheck"]
    port = settings_of(name, services[name]).server.port
    probe = ["CMD", "baton", "health", "--address", f"127.0.0.1:{port}"]
    assert check["test"] == [*probe, "--service", Role(name).health_service]
    served = importlib.import_module(f"{MODULES[name]}.server").SERVICES
    assert Role(name).health_service in served
    # The probe gives up after 2 s by itself; Compose must not cut it off before.
    assert seconds(check["timeout"]) > 2.0


def test_health_checks_use_flags_that_the_command_has() -> None:
    callbacks = [command.callback for command in app.registered_commands if command.callback]
    parameters = next(c.__annotations__ for c in callbacks if c.__name__ == "health")
    assert {"address", "service", "timeout"} <= set(parameters)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_stop_waits_longer_than_draining_and_closing_may_take(
    services: dict[str, Any], name: str
) -> None:
    grace = settings_of(name, services[name]).server.drain_grace
    assert seconds(services[name]["stop_grace_period"]) > grace + CLOSE_SECONDS


def test_workers_share_an_ipc_namespace_with_room(services: dict[str, Any]) -> None:
    assert services["decode"]["ipc"] == "shareable"
    assert services["prefill"]["ipc"] == "service:decode"
    assert services["decode"]["shm_size"] == "1gb"


def test_a_stop_drains_the_gateway_then_prefill_then_decode(services: dict[str, Any]) -> None:
    """Compose stops a service before those that it depends on."""
    assert {"prefill", "decode"} <= set(services["gateway"]["depends_on"])
    assert "decode" in services["prefill"]["depends_on"]
    assert set(services["decode"]["depends_on"]) == {"pull"}


@pytest.mark.parametrize("name", SETTINGS)
def test_services_start_when_the_model_is_there(services: dict[str, Any], name: str) -> None:
    condition = services[name]["depends_on"]["pull"]["condition"]
    assert condition == "service_completed_successfully"


def test_all_services_use_the_model_that_is_pulled(services: dict[str, Any]) -> None:
    *command, model = services["pull"]["command"]
    assert command == ["baton", "pull"]
    for name in SETTINGS:
        assert environment(services[name])[f"BATON_{name.upper()}_MODEL"] == model


@pytest.mark.parametrize("name", [*SETTINGS, "pull"])
def test_volumes_are_mounted_where_the_image_looks_for_them(
    services: dict[str, Any], name: str
) -> None:
    dockerfile = (FOLDER / "Dockerfile").read_text()
    volumes = {entry.split(":")[0]: entry.split(":")[1] for entry in services[name]["volumes"]}
    assert f"BATON_MODEL_DIR={volumes['models']}" in dockerfile
    if name != "pull":
        assert f"BATON_TRACE_DIR={volumes['traces']}" in dockerfile
    assert set(volumes) <= set(load_compose()["volumes"])


@pytest.mark.parametrize(
    ("name", "target"),
    [("gateway", "gateway"), ("pull", "gateway"), ("prefill", "engine"), ("decode", "engine")],
)
def test_images_are_built_from_stages_that_exist(
    services: dict[str, Any], name: str, target: str
) -> None:
    images = read_env()
    assert services[name]["image"] == images[f"{target.upper()}_IMAGE"]
    # One service of each image carries its build section, others reuse the image.
    build = services[name].get("build")
    if build is not None:
        assert build["target"] == target
        assert (FOLDER / build["context"] / build["dockerfile"]).is_file()
