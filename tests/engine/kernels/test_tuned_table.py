"""What was measured on this machine, in the user's cache."""

import json
import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.kernels.select import GEMM_TABLE, find_row, gemm_table, select_gemm
from engine.kernels.tuned_table import Machine, TunedTable, read_tuned, tuned_path

VARIABLE = "BATON_KERNEL_DIR"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "kernels"))
    return tmp_path / "kernels"


def make_table(**changes: Any) -> TunedTable:
    table = TunedTable(Machine.here(), "2030-01-02", 2, {"q4": 5, "q8": 0})
    return replace(table, **changes)


def test_what_is_written_is_read() -> None:
    assert read_tuned() is None
    table = make_table()
    assert table.write() == tuned_path(table.machine)
    assert read_tuned() == table


def test_measured_rows_stand_for_every_number_of_tokens() -> None:
    table = (*make_table().rows(), *GEMM_TABLE)
    architecture = torch.backends.cpu.get_cpu_capability()
    backends = [find_row(table, "q4", architecture, count).backend for count in (1, 5, 6, 10**6)]
    assert backends == ["int4", "int4", "dequantize", "dequantize"]
    assert find_row(table, "q8", architecture, 1).backend == "dequantize"


def test_dense_weights_keep_their_backend() -> None:
    assert {row.weights for row in make_table().rows()} == {"q4", "q8"}


def test_the_engine_multiplies_by_the_table_of_the_cache() -> None:
    make_table(int4_up_to={"q4": 12345, "q8": 0}).write()
    gemm_table.cache_clear()
    select_gemm.cache_clear()
    try:
        chosen = [select_gemm("q4", count) for count in (12345, 12346)]
        assert chosen == ["int4", "dequantize"]
        assert select_gemm("dense", 1) == "onednn_packed"
    finally:
        gemm_table.cache_clear()
        select_gemm.cache_clear()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"int4_up_to": {"q4": 1}}',
        '{"int4_up_to": {"q4": -1, "q8": 1}}',
        '{"int4_up_to": {"q4": true, "q8": 1}}',
        '{"int4_up_to": {"q4": "1", "q8": 1}}',
        '{"int4_up_to": {"q4": 1, "q8": 1}, "machine": {"cpu": "x"}}',
        "\udcff",
    ],
)
def test_a_broken_file_is_ignored_with_one_line(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = make_table().write()
    path.write_text(text, errors="surrogateescape")
    with caplog.at_level(logging.WARNING):
        assert read_tuned() is None
    (line,) = caplog.messages
    assert line.startswith(f"{path} is ignored, it is broken: ")


@pytest.mark.parametrize("field", ["torch", "baton", "cpu"])
def test_a_file_of_other_versions_is_ignored_with_one_line(
    field: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = make_table().write()
    stored = json.loads(path.read_text())
    stored["machine"][field] = "0.0"
    path.write_text(json.dumps(stored))
    with caplog.at_level(logging.WARNING):
        assert read_tuned() is None
    (line,) = caplog.messages
    assert "`baton kernels tune` measures again" in line


def test_processors_of_one_home_have_files_of_their_own() -> None:
    here = Machine.here()
    others = [replace(here, cpu="another"), replace(here, capability="AVX9000")]
    assert len({tuned_path(machine) for machine in (here, *others)}) == 3


def test_an_account_without_a_home_and_sources_without_an_install_have_no_table() -> None:
    """And an engine that starts. So it is for the numbers of users that containers are given."""
    code = (
        "import os, pwd, importlib.metadata as metadata\n"
        "def missing(name): raise KeyError(name)\n"
        "pwd.getpwuid = missing\n"
        "metadata.version = lambda name: metadata.distribution('no-such-' + name).version\n"
        "from engine.kernels.tuned_table import Machine, read_tuned\n"
        "print(read_tuned(), Machine.here().baton)\n"
    )
    env = {key: value for key, value in os.environ.items() if key not in ("HOME", VARIABLE)}
    run = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
    )
    assert run.stdout == "None not installed\n", run.stderr
