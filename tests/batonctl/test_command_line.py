"""The command line without a stack: help, versions, errors and exit codes."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.batonctl.command import baton
from tests.batonctl.hidden_modules import without

HEAVY = ("torch", "grpc", "rich", "asyncio", "numpy", "google.protobuf")
# Nothing listens there: a reserved port.
NOWHERE = "127.0.0.1:1"


@pytest.mark.parametrize("arguments", [["--help"], ["up", "--help"], ["generate", "-h"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys; from batonctl.__main__ import main\n"
        f"sys.argv = ['baton', *{arguments!r}]\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("Usage: baton")
    assert run.stderr.strip() == "[]"


@pytest.mark.parametrize("module", ["generate", "chat", "stack", "up", "demo", "health", "pull"])
def test_commands_need_no_torch(module: str) -> None:
    code = (
        f"import sys, batonctl.{module}\n"
        "print([m for m in ('torch', 'engine', 'kvtransfer', 'psutil') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_version() -> None:
    run = baton("--version")
    assert run.returncode == 0
    assert run.stdout.startswith("baton 0.")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["frobnicate"], 2, "No such command 'frobnicate'"),
        (["up", "--gateway-port", "0"], 2, "--gateway-port"),
        (["up", "--model", "no-such-model"], 2, "no model 'no-such-model' here"),
        (["up", "--decode-port", "7110"], 2, "prefill-0 and decode-0 would share port 7110"),
        (["up", "--prefill-workers", "11"], 2, "prefill-10 and decode-0 would share port 7120"),
        (["demo", "--model", "no-such-model"], 2, "no model 'no-such-model' here"),
        (["generate", "hi", "--address", NOWHERE], 3, f"nothing answers at {NOWHERE}"),
        (["generate", "hi", "--seed", "-1"], 2, "seed"),
        (["generate", "hi", "--top-k", "99999999999"], 2, "top_k"),
        (["generate", "hi", "--logit-bias", "frog"], 2, "logit_bias"),
        (["generate", "hi", "--system", "be brief"], 2, "--system needs --chat"),
        (["generate", "-", "--address", NOWHERE], 2, "stdin is not valid UTF-8"),
        (["generate", b"\xff".decode(errors="surrogateescape")], 2, "prompt: not valid UTF-8"),
        (["chat", "--address", NOWHERE], 3, f"nothing answers at {NOWHERE}"),
        (["health", "--address", NOWHERE], 3, "UNAVAILABLE"),
        (["pull", "no-such-model"], 2, "no model 'no-such-model' here"),
        (["pull", ""], 2, "no model '' here"),
        (["pull", "/no/such/path.gguf"], 2, "there is no file or folder /no/such/path.gguf"),
        (["pull", "./no-such.gguf"], 2, "there is no file or folder ./no-such.gguf"),
        (["up", "--model", ""], 2, "no model '' here"),
        (["generate", "hi", "--address", "nonsense"], 2, "'nonsense' is no address"),
        (["generate", "hi", "--address", ""], 2, "'' is no address"),
        (["chat", "--address", "127.0.0.1:70000"], 2, "'127.0.0.1:70000' is no address"),
        (["doctor", "--worker", "http://x:1"], 2, "'http://x:1' is no address"),
        (["health", "--address", "[::1]:1"], 3, "UNAVAILABLE"),
        (["trace", "feedfacefeedface"], 2, "no trace of request feedfacefeedface"),
    ],
    ids=lambda value: ascii(" ".join(value)) if isinstance(value, list) else None,
)
def test_wrong_use_is_one_clear_line_and_an_exit_code(
    arguments: list[str], code: int, says: str
) -> None:
    run = baton(*arguments, stdin=b"hello\xff\n" if "-" in arguments else "hello\n")
    assert run.returncode == code
    assert says in run.stderr
    assert "Traceback" not in run.stderr
    assert run.stdout == ""
    assert len(run.stderr.strip().splitlines()) <= 4


def test_a_taken_port_is_named_with_the_flag_that_changes_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        run = baton("up", "--prefill-port", str(port), "--gateway-port", "31000")
    assert run.returncode == 2
    assert f"port {port} for prefill-0 is taken by another process" in run.stderr
    assert "--prefill-port" in run.stderr


@pytest.mark.parametrize("command", ["up", "demo"])
def test_where_workers_cannot_run_nothing_is_started(tmp_path: Path, command: str) -> None:
    run = baton(command, env=without(tmp_path, "torch", "nixl_cu13"))
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.splitlines() == [
        "baton: workers cannot run here without torch, nixl_cu13",
        "  pip install 'baton-serve[engine]'",
    ]


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    fake = tmp_path / "fake.gguf"
    fake.write_bytes(b"not a model")
    run = baton("pull", str(fake), env={"BATON_MODEL_DIR": str(tmp_path / "store")})
    assert run.returncode == 1
    assert "fake.gguf is not a usable GGUF file" in run.stderr


def test_models_lists_the_catalogue_and_what_is_here(tmp_path: Path) -> None:
    run = baton("models", "--json", env={"BATON_MODEL_DIR": str(tmp_path)})
    models = json.loads(run.stdout)["models"]
    assert {"name": "smollm2-135m", "path": None}.items() <= models[0].items()


def test_pulling_what_is_here_says_where_it_is() -> None:
    run = baton("pull", "smollm2-135m", "--json")
    assert run.returncode == 0
    assert json.loads(run.stdout)["path"].endswith("SmolLM2-135M-Instruct.Q4_1.gguf")
