"""What a machine without a GPU must not need."""

import subprocess
import sys

CODE = """
import sys
import engine.llm_engine, engine.loop
found = {"triton", "flashinfer"} & set(sys.modules)
assert not found, found
"""


def test_the_engine_imports_no_gpu_package_on_a_cpu() -> None:
    output = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=False
    )
    assert output.returncode == 0, output.stderr
