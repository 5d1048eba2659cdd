"""What a target needs is fetched before it."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("target", ["demo", "up", "test", "bench"])
def test_the_default_model_is_fetched_before_what_runs_it(target: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    commands = subprocess.run(
        ["make", "--dry-run", target],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    pulls = [place for place, line in enumerate(commands) if "baton pull smollm2-135m" in line]
    assert pulls and pulls[0] < len(commands) - 1, commands
