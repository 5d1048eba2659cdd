"""The checks of the doctor, each with what is right and what is wrong."""

import asyncio
import json
import os
import re
import shutil
import socket
import sys
from pathlib import Path

import pytest

from batonctl.doctor import machine, model, ports, rates, transport
from batonctl.doctor.check import Check, Verdict
from batonctl.doctor.running import check_gateway, check_workers
from chassis.model_store import resolve
from tests.batonctl.command import baton
from tests.batonctl.hidden_modules import without

GIB = machine.GIB


@pytest.mark.parametrize(
    ("check", "verdict"),
    [
        (machine.check_python((3, 11)), Verdict.OK),
        (machine.check_python((3, 10)), Verdict.FAILED),
        (machine.check_python((3, 14)), Verdict.FAILED),
        (machine.check_platform("linux"), Verdict.OK),
        (machine.check_platform("darwin"), Verdict.FAILED),
        (machine.check_cores(2), Verdict.OK),
        (machine.check_cores(1), Verdict.WARNING),
        (machine.check_memory(8 * GIB), Verdict.OK),
        (machine.check_memory(GIB), Verdict.WARNING),
        (machine.check_memory(None), Verdict.SKIPPED),
        (machine.check_cpu_flags("x86_64", ["avx2", "avx512_bf16"]), Verdict.OK),
        (machine.check_cpu_flags("x86_64", ["sse2"]), Verdict.WARNING),
        (machine.check_cpu_flags("aarch64", []), Verdict.OK),
        (machine.check_shared_memory(Path("/no/such/folder")), Verdict.WARNING),
        (machine.check_engine_parts([], stack_runs=False), Verdict.OK),
        (machine.check_engine_parts(["torch"], stack_runs=False), Verdict.FAILED),
        (machine.check_engine_parts(["torch"], stack_runs=True), Verdict.WARNING),
    ],
    ids=lambda value: value.name if isinstance(value, Check) else value,
)
def test_machine(check: Check, verdict: Verdict) -> None:
    assert check.verdict == verdict
    # What is wrong says how to fix it.
    assert bool(check.fix) == (verdict in (Verdict.WARNING, Verdict.FAILED))


def test_this_machine_runs_the_tests() -> None:
    failed = [
        check
        for check in machine.check_machine(stack_runs=False)
        if check.verdict == Verdict.FAILED
    ]
    assert failed == []


def test_the_transport_moves_bytes_here() -> None:
    check = transport.check_transport()
    assert (check.verdict, check.detail) == (Verdict.OK, "nixl moved its test bytes on this host")


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import sys; sys.exit('UCX has no transport')", "exit 1): UCX has no transport"),
        ("import os; os.abort()", "exit -6"),
        ("import time; time.sleep(600)", "did not end within"),
    ],
    ids=["refused", "crashed", "hung"],
)
def test_a_transport_that_does_not_work_is_survived(code: str, says: str) -> None:
    limit = 0.5 if "sleep" in code else 60.0
    check = transport.check_transport((sys.executable, "-c", code), limit)
    assert check.verdict == Verdict.FAILED
    assert says in check.detail
    assert "UCX_TLS" in check.fix


def test_unusable_ucx_is_found_by_the_real_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "no_such_transport")
    check = transport.check_transport()
    assert check.verdict == Verdict.FAILED


def test_the_rate_of_every_pair_of_devices_is_compared_with_a_plain_copy() -> None:
    checks = rates.check_rates()
    assert checks[0].name == "transfer CPU"
    assert checks[0].verdict in (Verdict.OK, Verdict.WARNING)
    assert re.fullmatch(r"[\d.]+ GB/s over nixl, a plain copy makes [\d.]+", checks[0].detail)


@pytest.mark.parametrize(
    ("code", "verdict", "says"),
    [
        (
            """print('{"pair": "x", "transport": "y", "rate": 5e8, "plain": 9e9}')""",
            "warning",
            "0.5",
        ),
        ("""print('{"pair": "x", "error": "out of memory"}')""", "skipped", "out of memory"),
        ("import sys; sys.exit('no torch')", "skipped", "ended with 1: no torch"),
        ("import time; time.sleep(600)", "skipped", "nothing more within 0.5 s"),
    ],
    ids=["slow", "no room", "failed", "hung"],
)
def test_what_is_slow_or_cannot_be_measured_is_told(code: str, verdict: str, says: str) -> None:
    limit = 0.5 if "sleep" in code else 60.0
    (check,) = rates.check_rates((sys.executable, "-c", code), limit)
    assert check.verdict == verdict
    assert says in check.detail


def test_what_was_measured_before_the_time_was_up_is_told() -> None:
    line = """{"pair": "x", "transport": "y", "rate": 8e9, "plain": 9e9}"""
    code = f"import time; print({line!r}, flush=True); time.sleep(600)"
    measured, rest = rates.check_rates((sys.executable, "-c", code), 3.0)
    assert (measured.name, measured.verdict) == ("transfer x", Verdict.OK)
    assert (rest.verdict, rest.detail) == (Verdict.SKIPPED, "nothing more within 3 s")


def test_a_default_port_that_is_taken_fails_unless_a_stack_holds_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        monkeypatch.setitem(ports.DEFAULT_PORTS, "prefill", port)
        _, taken, _ = ports.check_ports(stack_runs=False)
        _, held, _ = ports.check_ports(stack_runs=True)
    assert (taken.verdict, held.verdict) == (Verdict.FAILED, Verdict.OK)
    assert "baton up --prefill-port" in taken.fix


def test_a_model_that_is_not_here_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATON_MODEL_DIR", str(tmp_path / "store"))
    store, missing = model.check_model("smollm2-135m")
    assert store.verdict == Verdict.OK
    assert (missing.verdict, missing.fix) == (Verdict.WARNING, "baton pull smollm2-135m")
    _, unknown = model.check_model("smolm")
    assert (unknown.verdict, unknown.fix) == (Verdict.FAILED, "name one of these with --model")
    assert "smollm2-135m" in unknown.detail


def test_a_broken_model_fails(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"nonsense")
    _, check = model.check_model(str(broken))
    assert check.verdict == Verdict.FAILED


def test_damage_to_the_model_is_found_wherever_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = resolve("smollm2-135m").path
    stored = tmp_path / "models" / "smollm2-135m"
    shutil.copytree(whole.parent, stored)
    monkeypatch.setenv("BATON_MODEL_DIR", str(tmp_path))
    with (stored / whole.name).open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"!")
    _, changed = model.check_model("smollm2-135m")
    assert changed.verdict == Verdict.FAILED and "sha256 differs" in changed.detail
    assert changed.fix == f"remove {stored}, then baton pull smollm2-135m"
    os.truncate(stored / whole.name, 50_000_000)
    _, cut = model.check_model("smollm2-135m")
    assert (cut.verdict, cut.fix) == (Verdict.FAILED, "baton pull smollm2-135m")
    assert "truncated" in cut.detail


def test_a_store_that_is_no_folder_fails_with_the_variable_that_moves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch(mode=0o400)
    monkeypatch.setenv("BATON_MODEL_DIR", str(tmp_path / "file" / "store"))
    store, _ = model.check_model("smollm2-135m")
    assert store.verdict == Verdict.FAILED
    assert "BATON_MODEL_DIR" in store.fix


def test_without_the_engine_only_what_needs_it_is_left_out(tmp_path: Path) -> None:
    run = baton("doctor", "--json", env=without(tmp_path, "nixl_cu13"))
    checks = {check["name"]: check for check in json.loads(run.stdout)["checks"]}
    assert run.returncode == 1
    assert checks["engine"]["detail"].startswith("not installed: nixl_cu13")
    assert "pip install 'baton-serve[engine]'" in checks["engine"]["fix"]
    assert checks["transport"]["verdict"] == "skipped"
    assert checks["model"]["verdict"] == "ok"


def test_a_stack_that_must_be_there_and_is_not_fails() -> None:
    (check,) = asyncio.run(check_gateway("127.0.0.1:1"))
    assert (check.verdict, check.fix) == (Verdict.FAILED, "start it with `baton up`")
    (worker,) = asyncio.run(check_workers(["127.0.0.1:1"]))
    assert worker.verdict == Verdict.FAILED


def test_the_report_is_json_with_an_exit_code(tmp_path: Path) -> None:
    # Without the engine nothing is measured, which takes its time.
    run = baton("doctor", "--json", "--address", "127.0.0.1:1", env=without(tmp_path, "nixl_cu13"))
    report = json.loads(run.stdout)
    assert run.returncode == 1
    assert report["healthy"] is False
    assert {"name", "verdict", "detail", "fix"} == set(report["checks"][0])
