"""What a worker derives from its settings and the machine."""

from pathlib import Path

import pytest

from worker.settings import Device, EngineSettings, multiplies_bfloat16


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("fpu avx512f avx512_bf16", True), ("fpu amx_bf16", True), ("fpu avx2", False), ("", False)],
    ids=["avx512", "amx", "avx2", "no flags"],
)
def test_bfloat16_is_chosen_by_the_flags_of_the_cpu(
    tmp_path: Path, flags: str, expected: bool
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nflags\t\t: {flags}\n", encoding="ascii")
    assert multiplies_bfloat16(cpuinfo) is expected


def test_a_machine_without_a_list_of_flags_does_not_multiply_bfloat16(tmp_path: Path) -> None:
    assert multiplies_bfloat16(tmp_path / "absent") is False


def test_threads_are_shared_among_the_workers_of_a_host_but_never_none() -> None:
    assert EngineSettings(threads=3).num_threads == 3
    assert EngineSettings(workers_on_host=10_000).num_threads == 1


def test_what_is_left_open_follows_from_the_device() -> None:
    settings = EngineSettings()
    assert settings.dtype_on("cuda") == "bfloat16"
    assert (settings.step_tokens_on("cpu"), settings.step_tokens_on("cuda")) == (256, 2048)
    # 0: the GPU says how much it has.
    assert (settings.kv_memory_on("cpu"), settings.kv_memory_on("cuda")) == (1 << 30, 0)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_is_chosen_stays(device: Device) -> None:
    settings = EngineSettings(dtype="float32", kv_memory_bytes=7, max_num_batched_tokens=8)
    assert settings.dtype_on(device) == "float32"
    assert (settings.kv_memory_on(device), settings.step_tokens_on(device)) == (7, 8)
