"""Every kernel with argument types it is launched with, to compile it without a GPU.

``python -m engine.kernels.cuda.catalog 80 90`` compiles all for these compute capabilities and
prints what each needs. A kernel that does not compile ends it with the compiler's message.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from engine.kernels.cuda.add_rms_norm import add_rms_norm_kernel
from engine.kernels.cuda.decode_plan import plan_decode_kernel
from engine.kernels.cuda.paged_decode import paged_decode_kernel
from engine.kernels.cuda.paged_prefill import paged_prefill_kernel
from engine.kernels.cuda.rotary_store import rotary_store_kernel
from engine.kernels.cuda.sample import race_kernel, truncate_kernel, winner_kernel
from engine.kernels.cuda.silu_mul import silu_mul_kernel
from engine.kernels.cuda.small_gemm import gemv_kernel, small_gemm_kernel

_POINTERS = {
    "int32": "slot_blocks slot_offsets positions seq_lens pieces tables table_stride "
    "counters query_starts tile_sequences tile_firsts top_ks choices seed_lows seed_highs "
    "last_ids ids",
    "float32": "rotations values weights temperatures top_ps min_ps maxima floors scores",
}
_POINTER_TYPES = {
    name: {"int32": "*i32", "float32": "*fp32"}[kind]
    for kind, names in _POINTERS.items()
    for name in names.split()
}
_FLOATS = {"epsilon", "scale"}
_NUMBERS = {
    "size", "block_stride", "head_stride", "kind_stride", "query_stride", "num_sequences",
    "num_places", "target", "window", "vocab_size", "num_pieces", "num_outputs", "num_columns",
    "num_tokens",
}  # fmt: skip
_ALIGNED = {
    "size", "block_stride", "head_stride", "kind_stride", "query_stride", "vocab_size",
    "num_outputs", "num_columns",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel with the constants it is specialised by. All other pointers are bfloat16."""

    kernel: Any
    constants: dict[str, Any]
    num_warps: int = 4

    def compile(self, capability: int) -> Any:
        """For compute capability ``capability`` (90 is 9.0), with dependent launch from 90 on."""
        constants = {**self.constants, "PDL": capability >= 90}
        signature = {name: self._type(name, constants) for name in self.kernel.arg_names}
        # Addresses, strides and sizes are multiples of 16, as they are for real models.
        aligned = {
            (place,): [["tt.divisibility", 16]]
            for place, name in enumerate(self.kernel.arg_names)
            if signature[name].startswith("*") or name in _ALIGNED
        }
        source = ASTSource(self.kernel, signature, constexprs=constants, attrs=aligned)
        options = {"num_warps": self.num_warps, "launch_pdl": capability >= 90}
        return compile(source, target=GPUTarget("cuda", capability, 32), options=options)

    def _type(self, name: str, constants: dict[str, Any]) -> str:
        if name in constants:
            return "constexpr"
        if self.kernel is winner_kernel and name == "output":
            return "*i32"
        if name == "table_stride" and self.kernel is paged_prefill_kernel:
            return "i32"
        if name in _FLOATS:
            return "fp32"
        return "i32" if name in _NUMBERS else _POINTER_TYPES.get(name, "*bf16")


def variants() -> Iterator[Variant]:
    """The shapes of Llama 3.1 8B, one variant for each branch of a kernel."""
    attention = {
        "NUM_KV_HEADS": 8,
        "GROUP": 4,
        "HEAD_DIM": 128,
        "DIM_BLOCK": 128,
        "BLOCK_SIZE": 16,
        "TILE": 64,
        "PRECISION": "tf32",
    }
    for has_delta in (True, False):
        yield Variant(add_rms_norm_kernel, {"HAS_DELTA": has_delta, "BLOCK": 4096}, 8)
    yield Variant(silu_mul_kernel, {"BLOCK": 1024})
    heads = {"NUM_HEADS": 32, "NUM_KV_HEADS": 8, "HALF": 64, "HALF_BLOCK": 64, "HEADS": 8}
    for norm in (True, False):
        yield Variant(rotary_store_kernel, {**heads, "NORM": norm}, 2)
    yield Variant(plan_decode_kernel, {"UNIT": 64, "BLOCK": 256})
    merge = {"MERGE": 8, "MERGE_WIDTH": 512}
    yield Variant(paged_decode_kernel, {**attention, "ROWS": 16, "STAGES": 5, **merge})
    yield Variant(paged_prefill_kernel, {**attention, "ROWS": 64, "STAGES": 2})
    for is_short in (True, False):
        scan = {"REACH": 26.1, "SCAN": 4096, "IS_SHORT": is_short}
        yield Variant(truncate_kernel, scan, 16)
    yield Variant(race_kernel, {"PIECE": 4096}, 8)
    yield Variant(winner_kernel, {"BLOCK": 32}, 1)
    for silu in (True, False):
        gemm = {"ROWS": 16, "COLUMNS": 256, "SILU": silu, "STAGES": 3}
        yield Variant(gemv_kernel, gemm)
        yield Variant(small_gemm_kernel, {**gemm, "TOKENS": 32, "PRECISION": "tf32"})


def main(capabilities: list[int]) -> None:
    for variant in variants():
        for capability in capabilities:
            shared = variant.compile(capability).metadata.shared
            print(f"{variant.kernel.__name__} sm_{capability}: {shared} bytes shared")


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]])
