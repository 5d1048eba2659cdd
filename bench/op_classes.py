"""What kind of work an operator or a kernel is, by its name: one table for CPUs and GPUs."""

import re
from typing import Literal

OpClass = Literal["attention", "gemm", "collective", "sampling", "other"]
OP_CLASSES: tuple[OpClass, ...] = ("attention", "gemm", "collective", "sampling", "other")

# The first pattern that is found in the name wins. Attention stands before products, whose words
# its kernels carry in the types that they are made with.
_PATTERNS: tuple[tuple[OpClass, str], ...] = (
    ("collective", r"nccl|all_?reduce|all_?gather|broadcast_kernel|symm_mem|c10d::"),
    (
        "sampling",
        r"^sampling$|truncate_kernel|race_kernel|winner_kernel|aten::argmax|count_tokens_kernel|"
        r"penalize_kernel|add_bias_kernel|rank_(pieces|rows)_kernel",
    ),
    (
        "attention",
        r"^attention$|paged_(decode|prefill|prefix)|plan_decode|PrefillWith|flashinfer|"
        r"scaled_dot_product|fmha|flash_fwd",
    ),
    (
        "gemm",
        r"linear_pointwise|_weight_int4pack|aten::(addmm|mm|bmm|baddbmm|linear|matmul)$|gemm|gemv|"
        r"nvjet|cutlass|cublas|splitk|xmma",
    ),
)
_TABLE = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _PATTERNS)


def classify(name: str) -> OpClass:
    """The kind of work that ``name`` stands for; "other" for what no pattern knows."""
    return next((kind for kind, pattern in _TABLE if pattern.search(name)), "other")
