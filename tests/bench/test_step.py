"""Where the time of a step goes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.op_classes import OpClass, classify
from bench.step_profile import device_times
from bench.tiny_model import VOCABULARY, write_tiny_model


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mkldnn::_linear_pointwise", "gemm"),
        ("aten::addmm", "gemm"),
        ("aten::_weight_int4pack_mm_for_cpu", "gemm"),
        ("nvjet_tst_128x64_64x8_4x1_v_bz_TNT", "gemm"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16>", "gemm"),
        ("gemv_kernel", "gemm"),
        ("small_gemm_kernel", "gemm"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
        ("paged_decode_kernel", "attention"),
        ("plan_decode_kernel", "attention"),
        ("void flashinfer::PrefillWithKVCacheKernel<cutlass::bfloat16_t>", "attention"),
        ("attention", "attention"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "collective"),
        ("one_shot_all_reduce_kernel<c10::BFloat16>", "collective"),
        ("race_kernel", "sampling"),
        ("rank_pieces_kernel", "sampling"),
        ("sampling", "sampling"),
        ("prepare_decode_kernel", "other"),
        ("add_rms_norm_kernel", "other"),
        ("rotary_store_kernel", "other"),
        ("aten::index_select", "other"),
        ("Memcpy HtoD (Pinned -> Device)", "other"),
    ],
)
def test_names_tell_the_kind_of_work(name: str, kind: OpClass) -> None:
    assert classify(name) == kind


def test_gaps_between_kernels_are_idle_and_no_moment_counts_twice() -> None:
    times = device_times(
        [
            (1.0, 2.0, "gemv_kernel"),
            (1.5, 2.5, "race_kernel"),
            (1.6, 1.7, "race_kernel"),
            (4.0, 5.0, "add_rms_norm_kernel"),
        ]
    )
    assert times.seconds["gemm"] == 1.0
    assert times.seconds["sampling"] == 0.5
    assert times.seconds["other"] == 1.0
    assert times.idle == 1.5
    assert times.total == 4.0


def test_a_device_that_did_nothing_took_no_time() -> None:
    assert device_times([]).total == 0.0


def test_a_run_tells_each_part_of_both_steps(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model")
    arguments = ["--model", model, "--batch", "2", "--context", "32", "--threads", "1"]
    run = subprocess.run(
        [sys.executable, "-m", "bench.step", *arguments, "--output", tmp_path, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    results = json.loads(run.stdout)
    assert results == json.loads((tmp_path / "step.json").read_text())
    figures = {each["name"]: each for each in results["figures"]}
    for step in ("step.decode.b2.ctx32", "step.prefill.n32"):
        parts = ["attention", "gemm", "sampling", "other", "idle"]
        values = [figures[f"{step}.{part}.ms"]["value"] for part in parts]
        assert min(values) > 0
        total = float(figures[f"{step}.ms"]["note"].split()[0])
        # Every figure is rounded to a microsecond.
        assert sum(values) == pytest.approx(total, abs=0.004)
    # The weights of the layers and of the head, and nothing less, at the rate of the memory.
    rate = float(results["hardware"]["memory_rate"].split()[0]) * 1e9
    assert figures["step.decode.b2.ctx32.gemm.ms"]["floor"] / 1e3 * rate >= 4 * 64 * VOCABULARY
