"""`baton kernels`: the choices of this machine, and how they are measured again."""

import json
from pathlib import Path

import pytest
import torch

from batonctl.errors import CommandError
from batonctl.kernels import run_tune
from bench.tiny_model import write_tiny_model
from engine.attention.select import create_attention
from engine.kernels import measure
from engine.kernels.tuned_table import read_tuned
from engine.kv_cache import KvCache
from tests.batonctl.command import baton
from tests.batonctl.hidden_modules import without
from tests.engine.attention_cases import make_model


@pytest.fixture
def tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of commands that find what a tune with tiny weights has written."""
    monkeypatch.setenv("BATON_KERNEL_DIR", str(tmp_path))
    monkeypatch.setattr(measure, "SHAPES", {"q4": ((64, 32),), "q8": ((64, 32),)})
    return {"BATON_KERNEL_DIR": str(tmp_path)}


def test_the_list_names_what_each_case_runs_on(tmp_path: Path) -> None:
    run = baton("kernels", env={"BATON_KERNEL_DIR": str(tmp_path)})
    assert (run.returncode, run.stderr) == (0, "")
    machine, header, *lines = run.stdout.splitlines()
    assert torch.__version__ in machine
    assert header.split() == [
        "operation", "phase", "architecture", "subject", "dtype", "batch", "backend", "note",
    ]  # fmt: skip
    assert any(line.startswith("gemm") and "q4 weights" in line for line in lines)
    assert any(line.startswith("attention") and "float32" in line for line in lines)


def test_what_was_measured_here_is_listed_in_place_of_what_ships(tuned: dict[str, str]) -> None:
    before = json.loads(baton("kernels", "--json", env=tuned).stdout)
    run_tune("smollm2-135m", 1, as_json=True)
    after = json.loads(baton("kernels", "--json", env=tuned).stdout)
    assert before["tuned"] is None
    assert after["tuned"] is not None
    for facts, are_measured in ((before, False), (after, True)):
        notes = [each["note"] for each in facts["choices"] if each["subject"] == "q4 weights"]
        assert {note.startswith("measured here") for note in notes} == {are_measured}


def test_a_tune_prints_every_time_and_where_the_table_went(
    tuned: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    run_tune("smollm2-135m", 1, as_json=False)
    output = capsys.readouterr().out
    table = read_tuned()
    assert table is not None
    assert f"q4 weights: int4 up to {table.int4_up_to['q4']} tokens" in output
    assert output.count("dequantize") == 2 * (1 + len(measure.TOKEN_COUNTS))
    assert output.splitlines()[-1].startswith(f"written to {tuned['BATON_KERNEL_DIR']}")


@pytest.mark.usefixtures("tuned")
def test_a_folder_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BATON_KERNEL_DIR", str(tmp_path / "file" / "below"))
    with pytest.raises(CommandError, match=r"cannot write the table: .*file/below"):
        run_tune("smollm2-135m", 1, as_json=False)


@pytest.mark.parametrize("arguments", [("kernels",), ("kernels", "tune")])
def test_without_torch_the_extra_is_named(arguments: tuple[str, ...], tmp_path: Path) -> None:
    run = baton(*arguments, env=without(tmp_path, "torch", "nixl_cu13"))
    assert run.returncode == 1
    assert run.stderr.splitlines() == [
        "baton: the engine's kernels are not here without torch, nixl_cu13",
        "  pip install 'baton-serve[engine]'",
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_attention_that_is_listed_is_the_one_that_runs(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    pool = KvCache(make_model(), num_blocks=2, block_size=16, dtype=dtype)
    facts = json.loads(baton("kernels", "--json", env={"BATON_KERNEL_DIR": str(tmp_path)}).stdout)
    (listed,) = [
        each["backend"]
        for each in facts["choices"]
        if each["operation"] == "attention" and each["dtype"] == str(dtype)[6:]
    ]
    assert listed == type(create_attention(pool)).__name__


@pytest.mark.skipif(torch.cuda.is_available(), reason="there would be something to build")
def test_without_a_gpu_there_is_nothing_to_build() -> None:
    run = baton("kernels", "build")
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("nothing to build: this machine has no NVIDIA GPU")


def test_without_triton_there_is_nothing_to_build(tmp_path: Path) -> None:
    run = baton("kernels", "build", "--arch", "90", "--json", env=without(tmp_path, "triton"))
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == {
        "compiled": 0,
        "nothing": "Triton is not installed: pip install 'baton-serve[cuda]'",
    }


@pytest.mark.parametrize("arch", ["75", "90;80", ""])
def test_an_architecture_that_nobody_checked_is_refused(arch: str) -> None:
    run = baton("kernels", "build", "--arch", arch)
    assert run.returncode == 2
    assert run.stderr == f"baton: --arch takes some of 80,90,100,120, not {arch!r}\n"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_build_for_another_machine_fills_the_cache(tmp_path: Path) -> None:
    """The interpreter, which the other tests use, cannot compile."""
    model, cache = write_tiny_model(tmp_path), tmp_path / "cache"
    env = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache)}
    arguments = ("kernels", "build", "--arch", "90", "--model", str(model), "--json")
    run = baton(*arguments, env=env, patience=500.0)
    assert run.returncode == 0, run.stderr
    facts = json.loads(run.stdout)
    assert facts["cache"] == str(cache)
    assert len(list(cache.iterdir())) == facts["compiled"] > 20
