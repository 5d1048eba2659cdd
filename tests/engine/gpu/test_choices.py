"""What is said of the tables, against the tables."""

from engine.attention.cascade_table import NEVER, CascadeHeads, CascadeRow
from engine.gpu.choices import gpu_choices
from engine.kernels.cuda.decode_shape import DECODE_TABLE


def test_hopper_takes_fa3_for_prompts_and_others_fa2() -> None:
    def prefill(capability: tuple[int, int]) -> list[str]:
        choices = gpu_choices(capability, has_flashinfer=True)
        return [choice.backend for choice in choices if choice.phase == "prefill"]

    assert prefill((9, 0)) == ["flashinfer fa3", "triton"]
    assert prefill((8, 0)) == ["flashinfer fa2", "triton"]


def test_without_flashinfer_our_kernel_takes_all_prompts() -> None:
    choices = gpu_choices((9, 0), has_flashinfer=False)
    (prefill,) = [choice for choice in choices if choice.phase == "prefill"]
    assert (prefill.backend, prefill.subject) == ("triton", "any head size")


def test_every_layout_of_decode_attention_is_listed_from_where_the_last_one_ends() -> None:
    choices = [c for c in gpu_choices((9, 0), has_flashinfer=False) if "pairs" in c.batch]
    assert len(choices) == len(DECODE_TABLE)
    assert choices[0].batch.startswith("from 1 pairs")
    assert choices[1].batch.startswith(f"from {DECODE_TABLE[0].max_pairs + 1} pairs")


def test_shared_prefixes_are_listed_as_they_were_measured_and_flat_without() -> None:
    def backends(*rows: CascadeRow) -> list[tuple[str, str]]:
        choices = gpu_choices((9, 0), has_flashinfer=False, cascades=rows)
        return [(each.batch, each.backend) for each in choices if "prefixes" in each.subject]

    row = CascadeRow("NVIDIA X", CascadeHeads(32, 8, 128), ((8, 4096), (64, NEVER)), "measured")
    assert backends() == [("any", "as if not")]
    assert backends(row) == [
        ("from 8 sequences that share 4096 tokens", "triton, together"),
        ("from 64 sequences: never", "triton, together"),
        ("any", "as if not"),
    ]


def test_gemms_that_were_measured_on_another_gpu_are_not_listed() -> None:
    def backends(capability: tuple[int, int]) -> set[str]:
        choices = gpu_choices(capability, has_flashinfer=False)
        return {choice.backend.split(",")[0] for choice in choices if choice.operation == "gemm"}

    assert backends((9, 0)) == {"triton", "cuBLAS"}
    assert backends((8, 0)) == {"cuBLAS"}
