"""Room on a GPU, on readings and clocks that are written down: no GPU is needed."""

import logging
from collections.abc import Sequence

import pytest

from engine.config import EngineConfig, ModelConfig
from engine.errors import ConfigurationError
from engine.gpu.memory import GIB, GpuMemory, MemoryNeed, await_memory, pool_bytes
from engine.gpu.room import check_fits, memory_need

TOTAL = 140 * GIB
WHOLE = MemoryNeed(weights=16 * GIB, pool=0, least_pool=GIB, num_processes=1)
LLAMA_8B = ModelConfig(
    architecture="llama",
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    rms_norm_eps=1e-5,
    rope_theta=500000.0,
    max_position_embeddings=131072,
)


class Gpu:
    """Its free memory by time; time passes while somebody sleeps, and a little at each look."""

    def __init__(self, free_by_second: Sequence[tuple[float, int]]) -> None:
        self.now = self.slept = 0.0
        self._free_by_second = free_by_second

    def read(self) -> GpuMemory:
        return GpuMemory([free for at, free in self._free_by_second if at <= self.now][-1], TOTAL)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds

    def clock(self) -> float:
        self.now += 1e-6
        return self.now

    def await_memory(self, need: MemoryNeed) -> int:
        return await_memory(need, self.read, self.clock, self.sleep).free


def test_a_free_gpu_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    gpu = Gpu([(0, 138 * GIB)])
    assert (gpu.await_memory(WHOLE), gpu.slept, caplog.records) == (138 * GIB, 0.0, [])


def test_memory_that_a_predecessor_left_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """There would be enough to start: with a pool of a tenth of what it should be."""
    gpu = Gpu([(0, 30 * GIB), (7, 60 * GIB), (12, 138 * GIB)])
    with caplog.at_level(logging.WARNING):
        assert gpu.await_memory(WHOLE) == 138 * GIB
    assert gpu.now == pytest.approx(12, abs=0.2)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert lines[0].startswith("waiting for memory of the GPU, 0 of at most 30 s: 30.0 of 126.0")
    assert lines[2].startswith("waiting for memory of the GPU, 10 of at most 30 s: 60.0 of 126.0")


def test_memory_that_somebody_keeps_is_done_without_where_there_is_enough() -> None:
    gpu = Gpu([(0, 30 * GIB), (4, 100 * GIB)])
    assert gpu.await_memory(WHOLE) == 100 * GIB
    assert gpu.now == pytest.approx(14, abs=0.3)


def test_where_there_is_not_enough_it_waits_for_as_long_as_it_may() -> None:
    gpu = Gpu([(0, GIB)])
    assert gpu.await_memory(WHOLE) == GIB
    assert gpu.now == pytest.approx(30, abs=0.2)


def test_a_pool_of_a_given_size_waits_for_no_more_than_that() -> None:
    need = MemoryNeed(weights=16 * GIB, pool=8 * GIB, least_pool=GIB, num_processes=1)
    gpu = Gpu([(0, 10 * GIB), (3, 25 * GIB)])
    assert gpu.await_memory(need) == 25 * GIB
    assert gpu.now == pytest.approx(3, abs=0.2)


def test_the_part_of_another_worker_is_not_waited_for() -> None:
    need = MemoryNeed(weights=16 * GIB, pool=0, least_pool=GIB, num_processes=2)
    gpu = Gpu([(0, 69 * GIB)])
    assert (gpu.await_memory(need), gpu.slept) == (69 * GIB, 0.0)


def test_what_can_never_fit_is_not_waited_for() -> None:
    gpu = Gpu([(0, GIB)])
    need = MemoryNeed(weights=200 * GIB, pool=0, least_pool=GIB, num_processes=1)
    assert (gpu.await_memory(need), gpu.slept) == (GIB, 0.0)


def test_a_pool_takes_what_is_free_but_for_the_reserve() -> None:
    assert pool_bytes(GpuMemory(100 * GIB, TOTAL), 16 * GIB, 1) == 90 * GIB
    assert pool_bytes(GpuMemory(10 * GIB, TOTAL), 16 * GIB, 1) == 7 * GIB
    assert pool_bytes(GpuMemory(100 * GIB, TOTAL), 16 * GIB, 2) == 54 * GIB - int(5.4 * GIB)
    with pytest.raises(ConfigurationError, match=r"leave 2\.0 of the GPU's 140\.0 GiB"):
        pool_bytes(GpuMemory(2 * GIB, TOTAL), 16 * GIB, 1)


def refusal(memory: GpuMemory, **settings: object) -> str:
    config = EngineConfig(**{"model_path": "any", "kv_memory_bytes": 0, **settings})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError) as caught:
        check_fits(config, LLAMA_8B, memory)
    return str(caught.value)


def test_a_model_that_fits_is_not_refused() -> None:
    config = EngineConfig(model_path="any", kv_memory_bytes=0)
    assert memory_need(config, LLAMA_8B).weights == 16_060_522_496
    check_fits(config, LLAMA_8B, GpuMemory(20 * GIB, 24 * GIB))


def test_a_model_too_large_for_the_gpu_names_the_ranks_that_it_would_fit_on() -> None:
    text = refusal(GpuMemory(15 * GIB, 16 * GIB))
    assert text.startswith("the model needs 18.0 GiB of a GPU, 15.0 GiB of weights, the rest ")
    assert "this one has 16.0 GiB, and 15.0 GiB are free" in text
    assert text.endswith("What would fit: tensor_parallel_size 2, on as many GPUs like this one")


def test_ranks_that_cannot_divide_the_model_are_not_named() -> None:
    text = refusal(GpuMemory(8 * GIB, 8 * GIB))
    assert text.endswith("What would fit: tensor_parallel_size 4, on as many GPUs like this one")


@pytest.mark.parametrize(
    ("memory", "settings", "way"),
    [
        (GpuMemory(10 * GIB, TOTAL), {}, "the same when 8.0 GiB more are free"),
        (GpuMemory(24 * GIB, 24 * GIB), {"dtype": "float32"}, "dtype bfloat16"),
        (GpuMemory(24 * GIB, 32 * GIB), {"workers_on_device": 2}, "this worker alone on its GPU"),
        (
            GpuMemory(24 * GIB, 24 * GIB),
            {"kv_memory_bytes": 20 * GIB},
            f"kv_memory_bytes of at most {24 * GIB - 16_060_522_496}",
        ),
    ],
    ids=["stop others", "a smaller dtype", "alone", "a smaller pool"],
)
def test_the_least_change_is_named_first(
    memory: GpuMemory, settings: dict[str, object], way: str
) -> None:
    assert refusal(memory, **settings).partition("What would fit: ")[2].startswith(way)


def test_where_nothing_would_help_a_smaller_model_is_named() -> None:
    text = refusal(GpuMemory(4 * GIB, 4 * GIB))
    assert text.endswith("What would fit: a smaller model, or a larger GPU")
