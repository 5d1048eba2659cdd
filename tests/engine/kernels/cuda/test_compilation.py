"""Every kernel compiles for every architecture without a GPU, and launches find it compiled."""

import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import engine.kernels.cuda

ARCHITECTURES = ("80", "90", "100", "120")
SOURCES = [
    path.read_text()
    for folder in engine.kernels.cuda.__path__
    for path in Path(folder).glob("*.py")
]


def kernels(decorator: str) -> set[str]:
    """What is launched; functions that kernels call have other names."""
    pattern = rf"@{decorator}\.jit(?:\(.*\))?\ndef (\w+_kernel)"
    return {name for source in SOURCES for name in re.findall(pattern, source)}


KERNELS = kernels("triton")
# By compute capability: Gluon says how one kind of GPU works.
OWN_KERNELS = {"90": kernels("gluon")}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


COMMAND = (sys.executable, "-m", "tests.engine.kernels.cuda.ahead_of_time")


def environment(cache: Path) -> dict[str, str]:
    return {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache)}


def run(cache: Path, *arguments: str) -> list[str]:
    """Lines that tests.engine.kernels.cuda.ahead_of_time prints, with this folder as the cache."""
    output = subprocess.run(
        [*COMMAND, *arguments],
        env=environment(cache),
        capture_output=True,
        text=True,
        check=False,
    )
    assert output.returncode == 0, output.stderr[-4000:]
    return output.stdout.splitlines()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    cache = tmp_path_factory.mktemp("triton")
    return cache, run(cache, "build", *ARCHITECTURES)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_kernel_compiles_for_ampere_hopper_and_blackwell(
    built: tuple[Path, list[str]], architecture: str
) -> None:
    lines = built[1]
    compiled = {line.split()[0] for line in lines if line.endswith(f" sm_{architecture}")}
    assert len(KERNELS) > 10
    assert OWN_KERNELS["90"]
    assert compiled == KERNELS | OWN_KERNELS.get(architecture, set())


def test_a_launch_finds_what_was_compiled_ahead(built: tuple[Path, list[str]]) -> None:
    """Else a worker would compile at its start, or worse, on a request."""
    cache = built[0]
    before = sorted(path.name for path in cache.iterdir())
    (num_launches,) = run(cache, "launch", "90")
    assert int(num_launches) > 100
    assert sorted(path.name for path in cache.iterdir()) == before


def test_prompts_of_any_length_launch_nothing_that_a_warm_up_does_not(tmp_path: Path) -> None:
    """A service never compiles on a request."""
    assert run(tmp_path, "missing", "90") == []


def test_nothing_compiles_on_where_the_build_was_killed(tmp_path: Path) -> None:
    command, pipe = [*COMMAND, "build", "90"], subprocess.PIPE
    with subprocess.Popen(command, env=environment(tmp_path), stdout=pipe) as build:
        assert build.stdout is not None and build.stdout.readline()
        processes = psutil.Process(build.pid).children()
        build.kill()
    assert len(processes) >= 2
    assert psutil.wait_procs(processes, timeout=60)[1] == []
