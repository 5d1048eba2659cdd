"""What requests' parameters do to their logits before anything is drawn from them.

The order is penalties, then bias; a bias of -inf is a mask. All of it is float32 and rounded as
``engine.logit_adjustment`` rounds it. How often a request said each token is kept on the device: a
word a token, the number of times in the output, and PROMPT where the prompt has it.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from engine.kernels.cuda.launch import pdl_options

PROMPT = 1 << 30
_PIECE = 4096
_BLOCK = 1024


@dataclass(frozen=True, slots=True)
class PenaltyRows:
    """One entry a row. int32: ``sources``, the row of the logits; ``slots``, that of the counts,
    -1 where nothing is penalized; ``adds_last``, 1 where the last token of the source is to be
    counted first, which no other row of that slot may say. float32: the three penalties."""

    sources: torch.Tensor
    slots: torch.Tensor
    adds_last: torch.Tensor
    repetition: torch.Tensor
    presence: torch.Tensor
    frequency: torch.Tensor


@dataclass(frozen=True, slots=True)
class BiasPairs:
    """``values`` (P,) float32 are added to tokens ``token_ids`` of ``rows``, int32; no token of a
    row twice."""

    rows: torch.Tensor
    token_ids: torch.Tensor
    values: torch.Tensor


@triton.jit(do_not_specialize=["slot", "num_tokens", "num_prompt_tokens"])
def count_tokens_kernel(
    token_ids,
    counts,
    stride,
    slot,
    num_tokens,
    num_prompt_tokens,
    PROMPT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < num_tokens
    token = tl.load(token_ids + place, mask=inside, other=0)
    count = counts + slot.to(tl.int64) * stride + token
    in_prompt = place < num_prompt_tokens
    tl.atomic_or(count, PROMPT, mask=inside & in_prompt)
    tl.atomic_add(count, 1, mask=inside & (in_prompt == 0))


@triton.jit
def penalize_kernel(
    logits,
    sources,
    slots,
    adds_last,
    repetitions,
    presences,
    frequencies,
    last_tokens,
    counts,
    stride,
    adjusted,
    vocab_size,
    PROMPT: tl.constexpr,
    PIECE: tl.constexpr,
    PDL: tl.constexpr,
):
    """One piece of one row; the piece that has the row's last token counts it."""
    row = tl.program_id(0)
    token = tl.program_id(1) * PIECE + tl.arange(0, PIECE)
    inside = token < vocab_size
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    source = tl.load(sources + row)
    value = tl.load(logits + source.to(tl.int64) * vocab_size + token, mask=inside, other=0.0)
    value = value.to(tl.float32)
    slot = tl.load(slots + row)
    if slot >= 0:
        place = counts + slot.to(tl.int64) * stride + token
        count = tl.load(place, mask=inside, other=0)
        if tl.load(adds_last + row) != 0:
            is_last = inside & (token == tl.load(last_tokens + source))
            count += tl.where(is_last, 1, 0)
            tl.store(place, count, mask=is_last)
        seen = count != 0
        times = (count & (PROMPT - 1)).to(tl.float32)
        repetition = tl.load(repetitions + row)
        if repetition != 1.0:
            divided = tl.math.div_rn(value, tl.zeros((PIECE,), tl.float32) + repetition)
            repeated = tl.where(value > 0.0, divided, value * repetition)
            # A tiny penalty divides to infinity, and infinite logits have no distribution.
            repeated = tl.minimum(repeated, 3.4028234663852886e38)
            value = tl.where(seen, repeated, value)
        said = tl.where(times > 0.0, tl.load(presences + row), 0.0)
        value = tl.where(seen, value - (said + tl.load(frequencies + row) * times), value)
    tl.store(adjusted + row.to(tl.int64) * vocab_size + token, value, mask=inside)


@triton.jit(do_not_specialize=["num_pairs"])
def add_bias_kernel(
    rows, token_ids, values, adjusted, num_pairs, vocab_size, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = pair < num_pairs
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.load(rows + pair, mask=inside, other=0).to(tl.int64)
    place = adjusted + row * vocab_size + tl.load(token_ids + pair, mask=inside, other=0)
    value = tl.load(place, mask=inside, other=0.0)
    tl.store(place, value + tl.load(values + pair, mask=inside, other=0.0), mask=inside)


def count_tokens(
    token_ids: torch.Tensor, counts: torch.Tensor, slot: int, num_prompt_tokens: int
) -> None:
    """Adds ``token_ids`` (N,) int32, N >= 1, to row ``slot`` of ``counts`` (slots, stride) int32.

    The first ``num_prompt_tokens`` of them are the prompt's.
    """
    assert counts.is_contiguous() and token_ids.dtype == counts.dtype == torch.int32, counts.dtype
    num_tokens = len(token_ids)
    count_tokens_kernel[(triton.cdiv(num_tokens, _BLOCK),)](
        token_ids,
        counts,
        counts.stride(0),
        slot,
        num_tokens,
        num_prompt_tokens,
        PROMPT=PROMPT,
        BLOCK=_BLOCK,
        num_warps=4,
    )


def adjust_logits(
    logits: torch.Tensor,
    rows: PenaltyRows,
    last_tokens: torch.Tensor,
    counts: torch.Tensor,
    pairs: BiasPairs,
    adjusted: torch.Tensor,
) -> None:
    """Writes rows of ``logits`` (S, vocabulary), bfloat16 or float32, to ``adjusted`` (R,
    vocabulary) float32, adjusted.

    ``last_tokens`` (S,) int32: what came before the token to draw. ``counts`` (slots, stride) int32
    counts those of ``rows.adds_last`` in.
    """
    assert logits.is_contiguous() and adjusted.is_contiguous(), logits.stride()
    assert last_tokens.dtype == counts.dtype == torch.int32, last_tokens.dtype
    num_rows, vocab_size = adjusted.shape
    options = pdl_options()
    penalize_kernel[(num_rows, triton.cdiv(vocab_size, _PIECE))](
        logits,
        rows.sources,
        rows.slots,
        rows.adds_last,
        rows.repetition,
        rows.presence,
        rows.frequency,
        last_tokens,
        counts,
        counts.stride(0),
        adjusted,
        vocab_size,
        PROMPT=PROMPT,
        PIECE=_PIECE,
        num_warps=8,
        # Fused sums would be rounded otherwise than on a CPU.
        enable_fp_fusion=False,
        **options,
    )
    if num_pairs := len(pairs.rows):
        add_bias_kernel[(triton.cdiv(num_pairs, _BLOCK),)](
            pairs.rows,
            pairs.token_ids,
            pairs.values,
            adjusted,
            num_pairs,
            vocab_size,
            BLOCK=_BLOCK,
            num_warps=4,
            **options,
        )


def count_tokens_torch(
    token_ids: torch.Tensor, counts: torch.Tensor, slot: int, num_prompt_tokens: int
) -> None:
    """The twin of ``count_tokens``."""
    prompt, output = token_ids[:num_prompt_tokens].long(), token_ids[num_prompt_tokens:].long()
    counts[slot, prompt] |= PROMPT
    counts[slot] += torch.bincount(output, minlength=counts.shape[1]).int()


def adjust_logits_torch(
    logits: torch.Tensor,
    rows: PenaltyRows,
    last_tokens: torch.Tensor,
    counts: torch.Tensor,
    pairs: BiasPairs,
    adjusted: torch.Tensor,
) -> None:
    """The twin of ``adjust_logits``."""
    sources, slots = rows.sources.long(), rows.slots.long()
    adding = rows.adds_last != 0
    counts[slots[adding], last_tokens[sources[adding]].long()] += 1
    count = torch.where((slots >= 0)[:, None], counts[slots, : logits.shape[1]], 0)
    times = (count & (PROMPT - 1)).float()
    value = logits[sources].float()
    penalty = rows.repetition[:, None]
    repeated = torch.where(value > 0, value / penalty, value * penalty)
    repeated = torch.where(penalty == 1.0, value, repeated.clamp(max=torch.finfo().max))
    repeated -= rows.presence[:, None] * (times > 0) + rows.frequency[:, None] * times
    adjusted.copy_(torch.where(count != 0, repeated, value))
    adjusted[pairs.rows.long(), pairs.token_ids.long()] += pairs.values
