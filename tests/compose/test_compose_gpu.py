"""compose.gpu.yaml on top of compose.yaml, against the code it runs."""

from typing import Any

import pytest
import typer.core

from batonctl.cli.app import app
from chassis.lifecycle import CLOSE_SECONDS
from chassis.settings import resolve_settings
from decode_svc.config import DecodeSettings
from prefill_svc.config import PrefillSettings
from tests.compose.compose_file import FOLDER, load_compose, merge, read_env, seconds

WORKERS: dict[str, type[Any]] = {"prefill": PrefillSettings, "decode": DecodeSettings}
CACHES = {"BATON_KERNEL_DIR", "TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE"}
GPUS = {"prefill": read_env()["PREFILL_GPU"], "decode": read_env()["DECODE_GPU"]}


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    both = merge(load_compose(), load_compose("compose.gpu.yaml"))
    services: dict[str, dict[str, Any]] = both["services"]
    return services


@pytest.mark.parametrize("name", WORKERS)
def test_workers_compute_on_a_gpu_with_settings_that_exist(
    services: dict[str, Any], name: str
) -> None:
    environment = {key: str(value) for key, value in services[name]["environment"].items()}
    settings = resolve_settings(WORKERS[name], name, {}, environment)
    assert settings.engine.device == "cuda"
    assert settings.engine.model == read_env()["MODEL"]
    grace = settings.server.drain_grace + CLOSE_SECONDS
    assert seconds(services[name]["stop_grace_period"]) > grace


def test_each_worker_computes_on_its_own_gpu_and_sees_the_other_one(
    services: dict[str, Any],
) -> None:
    chosen = {name: str(services[name]["environment"]["CUDA_VISIBLE_DEVICES"]) for name in WORKERS}
    assert chosen == GPUS
    assert len(set(chosen.values())) == 2
    for name in WORKERS:
        (device,) = services[name]["deploy"]["resources"]["reservations"]["devices"]
        assert device["driver"] == "nvidia"
        assert device["device_ids"] == list(GPUS.values())
        assert device["capabilities"] == ["gpu"]


@pytest.mark.parametrize("kind", ["ipc", "pid"])
def test_workers_live_in_namespaces_that_outlive_them(services: dict[str, Any], kind: str) -> None:
    assert {services[name][kind] for name in WORKERS} == {"service:namespaces"}
    holder = services["namespaces"]
    assert (holder["ipc"], holder["shm_size"], holder["init"]) == ("shareable", "1gb", True)
    assert not any(services[name]["init"] for name in WORKERS)
    assert all("namespaces" in services[name]["depends_on"] for name in WORKERS)


def test_workers_start_with_kernels_that_were_built_for_their_model(
    services: dict[str, Any],
) -> None:
    *command, model = services["kernels"]["command"]
    assert command == ["baton", "kernels", "build", "--model"]
    assert model == read_env()["MODEL"]
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    kernels = group.commands["kernels"]
    assert isinstance(kernels, typer.core.TyperGroup)
    assert "--model" in {flag for param in kernels.commands["build"].params for flag in param.opts}
    for name in WORKERS:
        condition = services[name]["depends_on"]["kernels"]["condition"]
        assert condition == "service_completed_successfully"


def test_what_is_compiled_is_kept_in_one_volume(services: dict[str, Any]) -> None:
    assert "kernels" in load_compose("compose.gpu.yaml")["volumes"]
    assert "mkdir /models /traces /kernels" in (FOLDER / "Dockerfile").read_text()
    for name in ("kernels", *WORKERS):
        assert "kernels:/kernels" in services[name]["volumes"]
        environment = services[name]["environment"]
        assert {environment[cache].split("/")[1] for cache in CACHES} == {"kernels"}


def test_the_image_has_no_index_beside_pypi(services: dict[str, Any]) -> None:
    """The CPU's index would give a torch without CUDA for the same version."""
    for name in ("kernels", *WORKERS):
        assert services[name]["image"] == read_env()["CUDA_ENGINE_IMAGE"]
        assert services[name]["build"]["args"]["PIP_EXTRA_INDEX_URL"] == ""
        assert services[name]["build"]["target"] == "engine-cuda"
