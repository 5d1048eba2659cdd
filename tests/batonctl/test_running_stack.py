"""Commands against a stack that `baton up` runs."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from batonctl.ports import find_free_ports
from tests.batonctl.command import PATIENCE, Running, baton
from tests.batonctl.hidden_modules import without
from tests.batonctl.terminal import Terminal

FRANCE = ("The capital of France is", "--temperature", "0", "--max-tokens", "5")


class Stack:
    """Where the stack of this module is."""

    def __init__(self, up: Running, gateway: int, prefill: int, decode: int) -> None:
        self.up = up
        self.gateway = f"127.0.0.1:{gateway}"
        self.prefill = f"127.0.0.1:{prefill}"
        self.decode = f"127.0.0.1:{decode}"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    gateway, prefill, decode = find_free_ports(3)
    ports = {"gateway": gateway, "prefill": prefill, "decode": decode}
    flags = [f"--{role}-port={port}" for role, port in ports.items()]
    with Running("up", "--dtype=float32", *flags) as up:
        up.wait_line("ready at")
        yield Stack(up, gateway, prefill, decode)
        up.interrupt()
        assert up.wait() == 0


def test_generate_prints_the_continuation(stack: Stack) -> None:
    run = baton("generate", *FRANCE, "--address", stack.gateway)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith(" Paris")


def test_generate_reads_the_prompt_from_stdin(stack: Stack) -> None:
    run = baton("generate", "-", *FRANCE[1:], "--address", stack.gateway, stdin=FRANCE[0])
    assert run.stdout.startswith(" Paris")


def test_generate_json_has_text_usage_and_timings(stack: Stack) -> None:
    run = baton(
        "generate", *FRANCE, "--json", "--logprobs", "2", env={"BATON_ADDRESS": stack.gateway}
    )
    answer = json.loads(run.stdout)
    (choice,) = answer["choices"]
    assert choice["text"].startswith(" Paris")
    assert choice["finish"] == {"reason": "length"}
    assert len(choice["token_ids"]) == len(choice["logprobs"]) == 5
    assert [len(row["top"]) for row in choice["logprobs"]] == [2] * 5
    assert answer["usage"]["completion_tokens"] == 5
    assert answer["model"] == "smollm2-135m"
    assert len(answer["request_id"]) == 32
    assert (
        0 < answer["timings"]["time_to_first_token_seconds"] <= answer["timings"]["total_seconds"]
    )


def test_the_same_seed_prints_the_same_choices(stack: Stack) -> None:
    flags = ("Once upon a time", "--n=2", "--seed=7", "--max-tokens=8", "--address", stack.gateway)
    first, second = baton("generate", *flags), baton("generate", *flags)
    assert first.stdout == second.stdout
    assert [line[:4] for line in first.stdout.splitlines() if line[:1] == "["] == ["[0] ", "[1] "]


def test_a_stop_string_ends_the_answer(stack: Stack) -> None:
    flags = ("--temperature=0", "--max-tokens=40", "--stop=.", "--json", "--address", stack.gateway)
    answer = json.loads(baton("generate", FRANCE[0], *flags).stdout)
    (choice,) = answer["choices"]
    assert choice["finish"] == {"reason": "stop_string", "stop": "."}
    assert "." not in choice["text"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--temperature=9"], "sampling.temperature"),
        (["--temperature=nan"], "sampling.temperature"),
        (["--top-p=0"], "sampling.top_p"),
        (["--n=99"], "sampling.n"),
        (["--max-tokens=999999"], "CONTEXT_EXCEEDED"),
        (["--model=gpt-9"], "MODEL_UNKNOWN"),
        (["--stop="], "sampling.stop"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_request_names_the_field(stack: Stack, flags: list[str], says: str) -> None:
    run = baton("generate", "hi", *flags, "--address", stack.gateway)
    assert run.returncode == 2
    assert says in run.stderr
    assert "Traceback" not in run.stderr
    assert run.stdout == ""


def test_an_empty_prompt_is_refused(stack: Stack) -> None:
    run = baton("generate", "", "--address", stack.gateway)
    assert run.returncode == 2
    assert "PROMPT_EMPTY" in run.stderr


def test_a_request_that_runs_out_of_time_says_so(stack: Stack) -> None:
    flags = ("--timeout=0.05", "--max-tokens=1000", "--ignore-eos", "--address", stack.gateway)
    run = baton("generate", "hi", *flags)
    assert run.returncode == 3
    assert "--timeout" in run.stderr


def test_chat_through_a_pipe_remembers_until_reset(stack: Stack) -> None:
    turns = "My name is Ada.\nWhat is my name?\n/reset\nWhat is my name?\n/quit\nnever sent\n"
    flags = ("--temperature=0", "--max-tokens=12", "--json", "--address", stack.gateway)
    run = baton("chat", *flags, stdin=turns)
    assert run.returncode == 0
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    first, second, third = (answer["usage"]["prompt_tokens"] for answer in answers)
    assert first < second
    assert third < second


def test_chat_shows_the_text_of_each_turn(stack: Stack) -> None:
    flags = ("--temperature=0", "--max-tokens=8", "--address", stack.gateway)
    run = baton("chat", *flags, stdin="Say hello.\n\nSay hello.\n")
    assert run.returncode == 0
    assert len(run.stdout.splitlines()) >= 2
    assert run.stderr == ""


def test_chat_ends_with_the_error_of_a_turn_when_nobody_watches(stack: Stack) -> None:
    flags = ("--temperature=9", "--address", stack.gateway)
    run = baton("chat", *flags, stdin="hello\nhello again\n")
    assert run.returncode == 2
    assert "sampling.temperature" in run.stderr


def test_ctrl_c_stops_an_answer_and_not_the_conversation(stack: Stack) -> None:
    # Long enough that the answer does not end before Ctrl-C comes.
    flags = ("--temperature=0", "--min-tokens=1000", "--address", stack.gateway)
    with Terminal("chat", *flags) as terminal:
        terminal.wait_for("> ")
        terminal.enter("Tell me a story.")
        terminal.wait_for(" ")
        terminal.interrupt()
        terminal.wait_for("(stopped)")
        terminal.wait_for("> ")
        terminal.enter("/frobnicate")
        terminal.wait_for("> ")
        terminal.enter("/quit")
        assert terminal.process.wait(PATIENCE) == 0


def test_a_failed_turn_does_not_end_an_interactive_conversation(stack: Stack) -> None:
    with Terminal("chat", "--temperature=9", "--address", stack.gateway) as terminal:
        terminal.wait_for("> ")
        terminal.enter("hello")
        terminal.wait_for("sampling.temperature")
        terminal.wait_for("> ")
        terminal.enter("/quit")
        assert terminal.process.wait(PATIENCE) == 0


@pytest.mark.parametrize("role", ["gateway", "prefill", "decode"])
def test_health_of_each_service(stack: Stack, role: str) -> None:
    names = {
        "gateway": "baton.v1.GenerationService",
        "prefill": "baton.v1.PrefillService",
        "decode": "baton.v1.DecodeService",
    }
    address = getattr(stack, role)
    assert baton("health", "--address", address).stdout == "SERVING\n"
    assert baton("health", "--address", address, "--service", names[role]).returncode == 0
    stranger = baton("health", "--address", address, "--service", "baton.v1.NoSuchService")
    assert stranger.returncode == 3
    assert "NOT_FOUND" in stranger.stderr


def test_doctor_knows_the_stack_and_its_workers(stack: Stack) -> None:
    workers = ("--worker", stack.prefill, "--worker", stack.decode)
    run = baton("doctor", "--json", "--address", stack.gateway, *workers)
    report = json.loads(run.stdout)
    checks = {check["name"]: check for check in report["checks"]}
    failed = [check for check in report["checks"] if check["verdict"] == "failed"]
    # Other processes of this machine may hold the default ports; nothing else may fail.
    assert [check for check in failed if not check["name"].startswith("port ")] == []
    assert "1 prefill, 1 decode" in checks["models"]["detail"]
    assert "4 tokens in" in checks["request"]["detail"]
    assert checks[f"worker {stack.prefill}"]["detail"].startswith("prefill, smollm2-135m")
    assert checks["pairing"]["verdict"] == "ok"
    assert "GB/s over nixl" in checks["transfer CPU"]["detail"]


def test_doctor_asks_no_engine_of_a_machine_that_only_talks_to_a_stack(
    stack: Stack, tmp_path: Path
) -> None:
    env = without(tmp_path, "torch", "safetensors", "nixl_cu13")
    run = baton("doctor", "--json", "--address", stack.gateway, env=env)
    checks = {check["name"]: check for check in json.loads(run.stdout)["checks"]}
    verdicts = [checks[name]["verdict"] for name in ("engine", "transport", "request")]
    assert verdicts == ["warning", "skipped", "ok"]


def test_doctor_says_how_to_fix_a_worker_that_is_not_there(stack: Stack, tmp_path: Path) -> None:
    workers = ("--worker", stack.prefill, "--worker", "127.0.0.1:1")
    # Without the engine nothing is measured, which takes its time.
    env = without(tmp_path, "nixl_cu13")
    run = baton("doctor", "--address", stack.gateway, *workers, env=env)
    assert run.returncode == 1
    row = next(line for line in run.stdout.splitlines() if line.startswith("worker 127.0.0.1:1 "))
    assert "FAILED" in row


def test_a_worker_is_no_gateway(stack: Stack, tmp_path: Path) -> None:
    env = without(tmp_path, "nixl_cu13")
    run = baton("doctor", "--address", stack.decode, "--json", env=env)
    checks = {check["name"]: check for check in json.loads(run.stdout)["checks"]}
    assert checks["readiness"]["verdict"] == "failed"
    assert "no Baton gateway" in checks["readiness"]["detail"]


def test_the_last_request_has_a_trace(stack: Stack) -> None:
    answer = json.loads(baton("generate", *FRANCE, "--json", "--address", stack.gateway).stdout)
    run = baton("trace", answer["request_id"])
    assert run.returncode == 0
    for stage in ("GenerateStream", "prefill.compute", "kv.pull", "decode.generate"):
        assert stage in run.stdout
