"""From what the host knows of a decode step to what the model reads, on the device."""

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from engine.kernels.cuda.launch import next_power_of_two, pdl_options


@triton.jit
def prepare_decode_kernel(
    known_tokens,
    sources,
    drawn_tokens,
    seq_lens,
    tables,
    table_stride,
    token_ids,
    positions,
    slot_blocks,
    slot_offsets,
    num_sequences,
    BLOCK_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    sequence = tl.arange(0, BLOCK)
    exists = sequence < num_sequences
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    known = tl.load(known_tokens + sequence, mask=exists)
    source = tl.load(sources + sequence, mask=exists, other=-1)
    drawn = tl.load(drawn_tokens + source, mask=exists & (source >= 0))
    tl.store(token_ids + sequence, tl.where(source >= 0, drawn, known), mask=exists)
    position = tl.load(seq_lens + sequence, mask=exists, other=1) - 1
    tl.store(positions + sequence, position, mask=exists)
    table = tables + sequence.to(tl.int64) * tl.load(table_stride)
    block = tl.load(table + position // BLOCK_SIZE, mask=exists)
    tl.store(slot_blocks + sequence, block, mask=exists)
    tl.store(slot_offsets + sequence, position % BLOCK_SIZE, mask=exists)


def prepare_decode(
    known_tokens: torch.Tensor,
    sources: torch.Tensor,
    drawn_tokens: torch.Tensor,
    seq_lens: torch.Tensor,
    tables: torch.Tensor,
    table_stride: torch.Tensor,
    token_ids: torch.Tensor,
    positions: torch.Tensor,
    slot_blocks: torch.Tensor,
    slot_offsets: torch.Tensor,
    block_size: int,
) -> None:
    """Fills the last four before ``block_size``, all int32 (S,), for tokens at ``seq_lens`` - 1.

    A token is ``drawn_tokens[source]``, or the known one where the source is negative. ``tables``:
    flat block tables, ``table_stride[0]`` entries a sequence.
    """
    num_sequences = seq_lens.shape[0]
    prepare_decode_kernel[(1,)](
        known_tokens,
        sources,
        drawn_tokens,
        seq_lens,
        tables,
        table_stride,
        token_ids,
        positions,
        slot_blocks,
        slot_offsets,
        num_sequences,
        BLOCK_SIZE=block_size,
        BLOCK=next_power_of_two(num_sequences),
        num_warps=4,
        **pdl_options(),
    )


def prepare_decode_torch(
    known_tokens: torch.Tensor,
    sources: torch.Tensor,
    drawn_tokens: torch.Tensor,
    seq_lens: torch.Tensor,
    tables: torch.Tensor,
    table_stride: torch.Tensor,
    token_ids: torch.Tensor,
    positions: torch.Tensor,
    slot_blocks: torch.Tensor,
    slot_offsets: torch.Tensor,
    block_size: int,
) -> None:
    """The twin of ``prepare_decode``."""
    drawn = drawn_tokens[sources.clamp(min=0).long()]
    token_ids.copy_(torch.where(sources >= 0, drawn, known_tokens))
    positions.copy_(seq_lens - 1)
    places = torch.arange(len(seq_lens), device=seq_lens.device) * table_stride[0]
    slot_blocks.copy_(tables[places + positions // block_size])
    slot_offsets.copy_(positions % block_size)
