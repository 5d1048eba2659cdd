"""Log probabilities of drawn tokens and of the likeliest ones, without sorting the vocabulary.

Two launches: the best of each piece of the vocabulary, one after the other, with the piece's part
of the sum; then the best of all pieces, whose lists are merged.
"""

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from engine.kernels.cuda.launch import next_power_of_two, pdl_options

_PIECE = 4096
# Rows of what is found start where 16 bytes do.
_ALIGNMENT = 4


@triton.jit(do_not_specialize=["width"])
def rank_pieces_kernel(
    logits,
    rows,
    maxima,
    sums,
    keys,
    vocab_size,
    num_pieces,
    width,
    PIECE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Keys are the order of a piece's tokens: higher logits first, lower ids among equals."""
    ranked = tl.program_id(0)
    piece = tl.program_id(1)
    token = piece * PIECE + tl.arange(0, PIECE)
    inside = token < vocab_size
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.load(rows + ranked).to(tl.int64)
    value = tl.load(logits + row * vocab_size + token, mask=inside, other=-float("inf"))
    highest = tl.max(value)
    place = ranked * num_pieces + piece
    tl.store(maxima + place, highest)
    # A piece may be masked as a whole.
    shift = tl.where(highest > -float("inf"), highest, 0.0)
    tl.store(sums + place, tl.sum(tl.exp(value - shift)))
    # The order of floats is that of their bits, if those of negative ones are flipped; zeros are
    # equal.
    bits = tl.where(value == 0.0, 0.0, value).to(tl.int32, bitcast=True)
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)
    lowest = tl.full((PIECE,), -0x8000000000000000, tl.int64)
    key = tl.where(inside, (ordered << 32) | (0x7FFFFFFF - token).to(tl.int64), lowest)
    for index in range(width):
        best = tl.max(key)
        tl.store(keys + place.to(tl.int64) * width + index, best)
        key = tl.where(key == best, lowest, key)


@triton.jit(do_not_specialize=["width", "stride"])
def rank_rows_kernel(
    logits,
    rows,
    token_ids,
    maxima,
    sums,
    keys,
    found,
    vocab_size,
    num_pieces,
    width,
    stride,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    ranked = tl.program_id(0)
    piece = tl.arange(0, BLOCK)
    inside = piece < num_pieces
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    place = ranked * num_pieces + piece
    piece_highest = tl.load(maxima + place, mask=inside, other=-float("inf"))
    highest = tl.max(piece_highest)
    piece_sum = tl.load(sums + place, mask=inside, other=0.0)
    log_sum = tl.log(tl.sum(piece_sum * tl.exp(piece_highest - highest)))
    row = tl.load(rows + ranked)
    chosen = tl.load(logits + row.to(tl.int64) * vocab_size + tl.load(token_ids + row))
    output = found + ranked.to(tl.int64) * stride
    tl.store(output, (chosen - highest - log_sum).to(tl.int32, bitcast=True))
    # Each piece's first key that is not taken yet.
    source = keys + place.to(tl.int64) * width
    lowest = tl.full((BLOCK,), -0x8000000000000000, tl.int64)
    key = tl.load(source, mask=inside & (width > 0), other=-0x8000000000000000)
    taken = tl.zeros((BLOCK,), tl.int32)
    for index in range(width):
        best = tl.max(key)
        ordered = (best >> 32).to(tl.int32)
        bits = ordered ^ ((ordered >> 31) & 0x7FFFFFFF)
        value = bits.to(tl.float32, bitcast=True) - highest - log_sum
        tl.store(output + 1 + index, value.to(tl.int32, bitcast=True))
        tl.store(output + 1 + width + index, 0x7FFFFFFF - (best & 0x7FFFFFFF).to(tl.int32))
        wins = key == best
        taken += tl.where(wins, 1, 0)
        following = tl.load(source + taken, mask=inside & wins & (taken < width), other=0)
        key = tl.where(wins, tl.where(taken < width, following, lowest), key)


def words_a_row(width: int) -> int:
    """Of what ``rank_logprobs`` finds: see there."""
    return -(-(1 + 2 * width) // _ALIGNMENT) * _ALIGNMENT


def rank_logprobs(
    logits: torch.Tensor,
    rows: torch.Tensor,
    token_ids: torch.Tensor,
    width: int,
    found: torch.Tensor,
) -> None:
    """Fills ``found`` (N, words_a_row(width)) int32 for N rows of ``logits`` (R, vocabulary).

    Each gets the log probability of its token as the bits of a float32, then those of the ``width``
    likeliest tokens, then their ids; at most as many as the vocabulary has. ``logits``: contiguous,
    float32. ``rows`` (N,) and ``token_ids`` (R,): int32.
    """
    vocab_size = logits.shape[1]
    assert logits.is_contiguous() and logits.dtype == torch.float32, logits.dtype
    assert width <= vocab_size and found.shape == (len(rows), words_a_row(width)), found.shape
    assert found.is_contiguous() and found.dtype == torch.int32, found.dtype
    num_rows, num_pieces = len(rows), triton.cdiv(vocab_size, _PIECE)
    maxima = torch.empty(num_rows, num_pieces, device=logits.device)
    sums = torch.empty(num_rows, num_pieces, device=logits.device)
    keys = torch.empty(num_rows, num_pieces, width, dtype=torch.int64, device=logits.device)
    options = pdl_options()
    rank_pieces_kernel[(num_rows, num_pieces)](
        logits,
        rows,
        maxima,
        sums,
        keys,
        vocab_size,
        num_pieces,
        width,
        PIECE=_PIECE,
        num_warps=8,
        **options,
    )
    rank_rows_kernel[(num_rows,)](
        logits,
        rows,
        token_ids,
        maxima,
        sums,
        keys,
        found,
        vocab_size,
        num_pieces,
        width,
        found.stride(0),
        BLOCK=next_power_of_two(num_pieces),
        num_warps=1,
        **options,
    )


def rank_logprobs_torch(
    logits: torch.Tensor,
    rows: torch.Tensor,
    token_ids: torch.Tensor,
    width: int,
    found: torch.Tensor,
) -> None:
    """The twin of ``rank_logprobs``."""
    places = rows.long()
    logprobs = logits[places].log_softmax(dim=-1)
    # Stable: the lower id first among equals.
    order = logits[places].argsort(dim=-1, descending=True, stable=True)[:, :width]
    found[:, 0] = logprobs.gather(1, token_ids[places].long()[:, None])[:, 0].view(torch.int32)
    found[:, 1 : 1 + width] = logprobs.gather(1, order).view(torch.int32)
    found[:, 1 + width : 1 + 2 * width] = order.int()
