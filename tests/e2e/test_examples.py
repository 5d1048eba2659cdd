"""The examples run as they are, against a real stack."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SAID = {
    "stream.py": "tokens, the first after",
    "chat.py": "> ",
    "deadline.py": "VALUE_OUT_OF_RANGE: sampling.top_p",
    "plain_grpc.py": "request ",
}


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_an_example_runs(gateway: str, tmp_path: Path, name: str) -> None:
    # Only the address differs from what a user would run.
    source = (EXAMPLES / name).read_text(encoding="utf-8")
    assert "127.0.0.1:7100" in source
    script = tmp_path / name
    script.write_text(source.replace("127.0.0.1:7100", gateway), encoding="utf-8")
    run = subprocess.run(
        [sys.executable, str(script)],
        input="What is gravity?\n\n",
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert run.returncode == 0, run.stderr
    assert SAID[name] in run.stdout
