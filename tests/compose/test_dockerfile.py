"""The Dockerfile against the tree that it copies and the extras that it installs."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.compose.compose_file import FOLDER, ROOT, load_compose, read_env

LINES = re.sub(r"\\\n", " ", (FOLDER / "Dockerfile").read_text()).splitlines()
INSTRUCTIONS = [line.split(maxsplit=1) for line in LINES if line and not line.startswith("#")]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def arguments(instruction: str) -> list[str]:
    return [rest for word, rest in INSTRUCTIONS if word == instruction]


def stages() -> dict[str, str]:
    """Stage name to what it is built on."""
    found = {}
    for rest in arguments("FROM"):
        parent, _, name = rest.split()
        found[name] = parent
    return found


def test_stages_build_on_each_other_and_on_the_base_image_argument() -> None:
    known = {"${PYTHON_IMAGE}", "${CUDA_IMAGE}"}
    for name, parent in stages().items():
        assert parent in known
        known.add(name)


def test_compose_builds_stages_that_exist() -> None:
    services = [
        service
        for name in ("compose.yaml", "compose.gpu.yaml")
        for service in load_compose(name)["services"].values()
    ]
    builds = [service["build"] for service in services if "build" in service]
    assert {build["target"] for build in builds} == {"gateway", "engine", "engine-cuda"}
    assert {build["target"] for build in builds} <= set(stages())
    declared = {rest.split("=")[0] for rest in arguments("ARG")}
    for build in builds:
        assert set(build["args"]) <= declared


def test_the_default_base_images_are_those_of_env_and_have_a_supported_python() -> None:
    default, cuda = (line.split("=", 1)[1] for line in arguments("ARG")[:2])
    assert (default, cuda) == (read_env()["PYTHON_IMAGE"], read_env()["CUDA_IMAGE"])
    version = tuple(map(int, re.findall(r"\d+", default)[:2]))
    assert (3, 11) <= version <= (3, 13)


def test_every_copied_path_exists_and_is_part_of_the_build_context() -> None:
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    for rest in arguments("COPY"):
        *sources, _ = rest.split()
        for source in sources:
            assert (ROOT / source).exists()
            assert source == "." or f"!{source}" in ignore


def test_the_build_context_holds_every_package_of_the_wheel() -> None:
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    tops = {Path(package).parts[0] for package in packages}
    kept = {line.removeprefix("!") for line in ignore if line.startswith("!")}
    assert tops <= kept
    assert all((ROOT / name).exists() for name in kept)
    assert {PROJECT["project"]["readme"], *PROJECT["project"]["license-files"]} <= kept


def test_only_the_engine_images_install_the_engine_extra() -> None:
    runs = dict.fromkeys(stages(), "")
    stage = ""
    for word, rest in INSTRUCTIONS:
        if word == "FROM":
            stage = rest.split()[-1]
        elif word == "RUN":
            runs[stage] += rest
    extras = {s: re.findall(r"requirements\.py ([\w ]+) >", text) for s, text in runs.items()}
    assert extras["engine"] == ["engine"]
    assert extras["engine-cuda"] == ["cuda"]
    assert extras["gateway"] == extras["gateway-dependencies"] == []
    assert "engine" in PROJECT["project"]["optional-dependencies"]


@pytest.mark.parametrize(
    ("extras", "has_torch"), [([], False), (["engine"], True), (["cuda"], True)]
)
def test_requirements_are_those_of_the_project(extras: list[str], has_torch: bool) -> None:
    run = subprocess.run(
        [sys.executable, FOLDER / "requirements.py", *extras],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = run.stdout.splitlines()
    assert set(PROJECT["project"]["dependencies"]) <= set(lines)
    assert any(line.startswith("torch") for line in lines) == has_torch
    # Nothing of ours: it comes from the sources, not from an index.
    assert not any(line.startswith(PROJECT["project"]["name"]) for line in lines)


def test_the_images_run_as_a_user_that_is_seen_not_to_be_root() -> None:
    # By its number: who runs an image cannot look a name up in it.
    made = re.search(r"useradd --uid (\d+)", " ".join(arguments("RUN")))
    assert made is not None
    for stage in ("gateway", "engine", "engine-cuda"):
        start = LINES.index(next(line for line in LINES if line.endswith(f" AS {stage}")))
        after = LINES[start + 1 :]
        end = next((i for i, line in enumerate(after) if line.startswith("FROM")), len(after))
        assert f"USER {made[1]}" in after[:end]


def test_exposed_ports_are_those_of_the_services() -> None:
    exposed = {int(port) for rest in arguments("EXPOSE") for port in rest.split()}
    assert exposed == {7100, 8100, 7101, 8101, 7102, 8102}
