"""What the tables say for an NVIDIA GPU."""

from collections.abc import Iterator, Sequence

from engine.attention.cascade_table import NEVER, CascadeRow
from engine.attention.gpu_select import FLASHINFER_HEAD_DIMS, prefill_choice
from engine.choice import Choice
from engine.gpu.group import ONE_SHOT_BYTES, TWO_SHOT_BYTES
from engine.kernels.cuda.decode_shape import DECODE_TABLE
from engine.kernels.cuda.gemm_table import SMALL_GEMM_TABLE

_STEP = "ms of a step of Llama 3.1 8B on an H200"


def gpu_choices(
    capability: tuple[int, int], *, has_flashinfer: bool, cascades: Sequence[CascadeRow] = ()
) -> Iterator[Choice]:
    """Of a GPU of compute capability ``capability``, a rank of several included; ``cascades`` are
    the rows for shared prefixes that hold for it."""
    architecture = ".".join(map(str, capability))
    yield from _attention_choices(capability, architecture, has_flashinfer)
    yield from _cascade_choices(architecture, cascades)
    yield from _gemm_choices(capability, architecture)
    sums = (
        (f"to {ONE_SHOT_BYTES >> 10} KiB", "one shot", "8 KiB: 6.8 us, by NCCL 9.9"),
        (f"to {TWO_SHOT_BYTES >> 10} KiB", "two shots", "1 MiB: 13.9 us, by NCCL 17.4"),
        ("larger", "NCCL", "two H200 with NVLink, in a graph"),
    )
    for batch, backend, note in sums:
        yield Choice("all-reduce", "any", "*", "sums of ranks", "bfloat16", batch, backend, note)


def _attention_choices(
    capability: tuple[int, int], architecture: str, has_flashinfer: bool
) -> Iterator[Choice]:
    if has_flashinfer:
        row = prefill_choice(capability)
        sizes = ", ".join(map(str, FLASHINFER_HEAD_DIMS))
        yield Choice(
            "attention",
            "prefill",
            "*" if row.capability is None else architecture,
            f"head size {sizes}",
            "bfloat16",
            "any",
            f"flashinfer {row.backend}",
            row.note,
        )
    others = "other head sizes" if has_flashinfer else "any head size"
    yield Choice("attention", "prefill", "*", others, "any", "any", "triton", "covers every shape")
    first = 1
    for shape in DECODE_TABLE:
        pairs = f"from {first} pairs of sequence and KV head"
        yield Choice(
            "attention",
            "decode",
            "*",
            "any head size",
            "any",
            pairs,
            f"triton, tiles of {shape.tile}",
            f"{_STEP}: {shape.note}",
        )
        first = shape.max_pairs + 1


def _cascade_choices(architecture: str, cascades: Sequence[CascadeRow]) -> Iterator[Choice]:
    for row in cascades:
        heads = row.heads
        subject = f"shared prefixes, {heads.num_heads}/{heads.num_kv_heads} x {heads.head_dim}"
        for members, tokens in row.least_tokens:
            batch = f"from {members} sequences that share {tokens} tokens"
            if tokens >= NEVER:
                batch = f"from {members} sequences: never"
            yield Choice(
                "attention", "decode", architecture, subject, "bfloat16", batch, "triton, together",
                row.note,
            )  # fmt: skip
    note = "`baton kernels tune` measures from when on sequences should attend together"
    yield Choice(
        "attention", "decode", "*", "other shared prefixes", "any", "any", "as if not", note
    )


def _gemm_choices(capability: tuple[int, int], architecture: str) -> Iterator[Choice]:
    for row in SMALL_GEMM_TABLE:
        if row.capability == capability:
            gated = ", gate and up" if row.silu else ""
            yield Choice(
                "gemm",
                "any",
                architecture,
                f"{row.outputs} x {row.columns}{gated}",
                "bfloat16",
                f"to {row.max_tokens} tokens",
                f"triton, {row.shape.rows} x {row.shape.columns}",
                "faster than cuBLAS in a whole step",
            )
    yield Choice("gemm", "any", "*", "all other weights", "any", "any", "cuBLAS", "without a row")
