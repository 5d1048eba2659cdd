"""What a worker says where only the base package is installed."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.batonctl.command import environment
from tests.batonctl.hidden_modules import without


@pytest.mark.parametrize("module", ["prefill_svc", "decode_svc"])
def test_a_worker_without_torch_says_how_to_get_it(module: str, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", module],
        env=environment(without(tmp_path, "torch")),
        capture_output=True,
        text=True,
        check=False,
    )
    (line,) = run.stderr.splitlines()
    assert "No module named 'torch'" in line
    assert "pip install 'baton-serve[engine]'" in line
    assert run.returncode == 1
