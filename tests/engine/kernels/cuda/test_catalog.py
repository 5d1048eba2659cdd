"""Every kernel compiles for every architecture, without a GPU."""

import os
import subprocess
import sys

import pytest

CAPABILITIES = ("80", "90", "100", "120")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_kernel_compiles_for_ampere_hopper_and_blackwell(tmp_path: object) -> None:
    """In a process of its own: Triton's interpreter, which the other tests use, cannot compile."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "engine.kernels.cuda.catalog", *CAPABILITIES]
    output = subprocess.run(
        command,
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert output.returncode == 0, output.stderr[-4000:]
    for capability in CAPABILITIES:
        assert f"paged_decode_kernel sm_{capability}: " in output.stdout
