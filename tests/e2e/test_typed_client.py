"""What a user's own type checker makes of the client: the examples in a strict project."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
CLIENTS = ("chat.py", "deadline.py", "stream.py")
# A field of a message in a message: Any, if the stubs of protobuf were missing.
REVEALED = """
from baton.client import BatonClient


async def ask(client: BatonClient) -> None:
    reveal_type((await client.generate("hi")).choices[0].text)
"""


@pytest.mark.slow
def test_a_strict_project_that_imports_the_client_passes(tmp_path: Path) -> None:
    for name in CLIENTS:
        (tmp_path / name).write_text((EXAMPLES / name).read_text())
    (tmp_path / "revealed.py").write_text(REVEALED)
    command = [sys.executable, "-m", "mypy", "--strict", *CLIENTS, "revealed.py"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert 'Revealed type is "str"' in run.stdout
    assert run.returncode == 0, run.stdout
