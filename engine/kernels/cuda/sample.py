"""Draws one token a row by the rule of ADR 6, without sorting the vocabulary.

Three launches: what truncation keeps (nothing for rows that keep all), the best of each piece of
the vocabulary, the best of all. Scores are float32, where the CPU's sampler decides in float64.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from engine.kernels.cuda.launch import pdl_options

# Gumbels lie in (-3.14, 22.88): a token this far below the best, in logit / temperature, loses.
_REACH = 26.1
_SCAN = 4096
_PIECE = 4096
# Keys that a pass of truncation adds up for.
_WAYS = 8


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """One entry a row: float32 ``temperatures`` (0: greedy), ``top_ps`` and ``min_ps``, int32
    ``top_ks`` (0: all), ``choices`` and ``positions`` (of the token to draw), and the halves of
    the seed as int32, ``seed_lows`` and ``seed_highs``."""

    temperatures: torch.Tensor
    top_ps: torch.Tensor
    min_ps: torch.Tensor
    top_ks: torch.Tensor
    choices: torch.Tensor
    positions: torch.Tensor
    seed_lows: torch.Tensor
    seed_highs: torch.Tensor


@triton.jit
def truncate_kernel(
    logits,
    temperatures,
    top_ps,
    min_ps,
    top_ks,
    maxima,
    floors,
    last_ids,
    vocab_size,
    REACH: tl.constexpr,
    SCAN: tl.constexpr,
    WAYS: tl.constexpr,
    IS_SHORT: tl.constexpr,
    PDL: tl.constexpr,
):
    """A token stays if its logit is above the row's floor, or equal and its id at most last_id."""
    row = tl.program_id(0)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    temperature = tl.load(temperatures + row)
    if temperature == 0.0:
        return
    top_k = tl.load(top_ks + row)
    top_p = tl.load(top_ps + row)
    min_p = tl.load(min_ps + row)
    place = tl.arange(0, SCAN)
    way = tl.arange(0, WAYS).to(tl.int64) + 1
    values = logits + row.to(tl.int64) * vocab_size
    best = tl.full((SCAN,), -float("inf"), tl.float32)
    for first in range(0, vocab_size, SCAN):
        token = first + place
        value = tl.load(values + token, mask=token < vocab_size, other=-float("inf"))
        best = tl.maximum(best, value.to(tl.float32))
    highest = tl.max(best)
    floor = -float("inf")
    last_id = vocab_size
    is_cut_by_k = (top_k > 0) & (top_k < vocab_size)
    # The order of floats is that of their bits, if those of negative ones are flipped. bfloat16
    # has the upper 16 of them, which makes the search for a floor half as long.
    shift = 16 if IS_SHORT else 0
    bits = highest.to(tl.int32, bitcast=True)
    top_key = (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> shift
    bits = (highest - REACH * temperature).to(tl.int32, bitcast=True)
    reach_key = ((bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> shift) - 1
    for kind in tl.static_range(2):
        is_cut = is_cut_by_k if kind == 0 else top_p < 1.0
        if is_cut:
            # Weights of what is kept so far add up to ``enough`` times the share that stays.
            enough = top_k.to(tl.float32)
            if kind == 1:
                mass = tl.zeros((SCAN,), tl.float32)
                for first in range(0, vocab_size, SCAN):
                    token = first + place
                    value = tl.load(values + token, mask=token < vocab_size, other=-float("inf"))
                    value = value.to(tl.float32)
                    kept = (value > floor) | ((value == floor) & (token <= last_id))
                    weight = tl.exp((value - highest) / temperature)
                    mass += tl.where(kept, weight, 0.0)
                enough = tl.sum(mass) * top_p
            # The highest key from which on the weights add up to enough, between two that each pass
            # brings closer: to add up for several keys takes it hardly longer than for one.
            # In 64 bits: keys on both sides of 0 lie further apart than 32 bits count.
            low = reach_key.to(tl.int64)
            high = top_key.to(tl.int64) + 1
            above = 0.0
            while high - low > 1:
                middles = low + tl.maximum((high - low) * way // (WAYS + 1), 1)
                middle_keys = middles.to(tl.int32)
                found = tl.zeros((WAYS, SCAN), tl.float32)
                for first in range(0, vocab_size, SCAN):
                    token = first + place
                    value = tl.load(values + token, mask=token < vocab_size, other=-float("inf"))
                    value = value.to(tl.float32)
                    value_bits = value.to(tl.int32, bitcast=True)
                    key = (value_bits ^ ((value_bits >> 31) & 0x7FFFFFFF)) >> shift
                    kept = (value > floor) | ((value == floor) & (token <= last_id))
                    weight = tl.exp((value - highest) / temperature) if kind == 1 else 1.0
                    weight = tl.where(kept, weight, 0.0)
                    found += tl.where(key[None, :] >= middle_keys[:, None], weight[None, :], 0.0)
                sums = tl.sum(found, axis=1)
                # The sums fall as the keys rise.
                low = tl.maximum(low, tl.max(tl.where(sums >= enough, middles, low)))
                lowest_short = tl.min(tl.where(sums >= enough, high, middles))
                if lowest_short < high:
                    above = tl.max(tl.where(middles == lowest_short, sums, 0.0))
                    high = lowest_short
            if low > reach_key:
                bits = low.to(tl.int32) << shift
                bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
                new_floor = bits.to(tl.float32, bitcast=True)
                weight = tl.exp((new_floor - highest) / temperature) if kind == 1 else 1.0
                # Among equals the lower ids stay: so many of them that the sum is enough.
                number = tl.maximum(tl.ceil((enough - above) / weight), 1.0)
                seen = 0.0
                new_last = vocab_size
                for first in range(0, vocab_size, SCAN):
                    token = first + place
                    value = tl.load(values + token, mask=token < vocab_size, other=-float("inf"))
                    value = value.to(tl.float32)
                    equal = (value == new_floor) & ((value > floor) | (token <= last_id))
                    ones = tl.where(equal, 1.0, 0.0)
                    rank = seen + tl.cumsum(ones)
                    is_last = equal & (rank == number)
                    new_last = tl.minimum(new_last, tl.min(tl.where(is_last, token, vocab_size)))
                    seen += tl.sum(ones)
                floor = new_floor
                last_id = new_last
    if min_p > 0.0:
        least = highest + temperature * tl.log(min_p)
        if least > floor:
            floor = least
            last_id = vocab_size
    tl.store(maxima + row, highest)
    tl.store(floors + row, floor)
    tl.store(last_ids + row, last_id)


@triton.jit
def race_kernel(
    logits,
    temperatures,
    choices,
    positions,
    seed_lows,
    seed_highs,
    maxima,
    floors,
    last_ids,
    scores,
    ids,
    vocab_size,
    num_pieces,
    PIECE: tl.constexpr,
    PDL: tl.constexpr,
):
    """The best score of one piece of one row, and the lowest id that has it."""
    row = tl.program_id(0)
    piece = tl.program_id(1)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    token = piece * PIECE + tl.arange(0, PIECE)
    inside = token < vocab_size
    source = logits + row.to(tl.int64) * vocab_size + token
    score = tl.load(source, mask=inside, other=-float("inf")).to(tl.float32)
    temperature = tl.load(temperatures + row)
    if temperature > 0.0:
        floor = tl.load(floors + row)
        kept = (score > floor) | ((score == floor) & (token <= tl.load(last_ids + row)))
        score = (score - tl.load(maxima + row)) / temperature
        group = (piece * (PIECE // 4) + tl.arange(0, PIECE // 4)).to(tl.uint32)
        zero = group * 0
        position = zero + tl.load(positions + row).to(tl.uint32, bitcast=True)
        choice = zero + tl.load(choices + row).to(tl.uint32, bitcast=True)
        word0, word1, word2, word3 = tl.philox_impl(
            group,
            position,
            choice,
            zero,
            zero + tl.load(seed_lows + row).to(tl.uint32, bitcast=True),
            zero + tl.load(seed_highs + row).to(tl.uint32, bitcast=True),
        )
        word = tl.join(tl.join(word0, word2), tl.join(word1, word3)).reshape(PIECE)
        uniform = (word.to(tl.float32) + 0.5) * 2.3283064365386963e-10
        rest = ((word ^ 0xFFFFFFFF).to(tl.float32) + 0.5) * 2.3283064365386963e-10
        # -log1p(-u): by its series where 1 - u would lose the digits of u.
        series = uniform * (
            1.0
            + uniform
            * (0.5 + uniform * (0.33333334 + uniform * (0.25 + uniform * (0.2 + uniform / 6))))
        )
        delay = tl.where(uniform < 0.0625, series, -tl.log(rest))
        score = tl.where(kept & inside, score - tl.log(delay), -float("inf"))
    best = tl.max(score)
    best_id = tl.min(tl.where((score == best) & inside, token, vocab_size))
    tl.store(scores + row * num_pieces + piece, best)
    tl.store(ids + row * num_pieces + piece, best_id)


@triton.jit
def winner_kernel(
    scores, ids, output, num_pieces, vocab_size, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    row = tl.program_id(0)
    place = tl.arange(0, BLOCK)
    inside = place < num_pieces
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    score = tl.load(scores + row * num_pieces + place, mask=inside, other=-float("inf"))
    token = tl.load(ids + row * num_pieces + place, mask=inside, other=vocab_size)
    best = tl.max(score)
    winner = tl.min(tl.where(score == best, token, vocab_size))
    # A row of nothing but NaN has no best; any id in range is as wrong as another.
    tl.store(output + row, tl.minimum(winner, vocab_size - 1))


def sample(logits: torch.Tensor, rows: SamplingRows, output: torch.Tensor) -> None:
    """Writes the token id of each row of ``logits`` (R, vocabulary) to ``output`` (R,) int32.

    ``logits``: contiguous, bfloat16 or float32.
    """
    num_rows, vocab_size = logits.shape
    assert logits.is_contiguous() and output.dtype == torch.int32, logits.stride()
    device = logits.device
    num_pieces = triton.cdiv(vocab_size, _PIECE)
    # Each begins where 16 bytes do: Triton compiles anew for addresses that do not.
    maxima, floors = (torch.empty(num_rows, device=device) for _ in range(2))
    last_ids = torch.empty(num_rows, dtype=torch.int32, device=device)
    scores = torch.empty(num_rows, num_pieces, device=device)
    ids = torch.empty(num_rows, num_pieces, dtype=torch.int32, device=device)
    options = pdl_options()
    truncate_kernel[(num_rows,)](
        logits,
        rows.temperatures,
        rows.top_ps,
        rows.min_ps,
        rows.top_ks,
        maxima,
        floors,
        last_ids,
        vocab_size,
        REACH=_REACH,
        SCAN=_SCAN,
        WAYS=_WAYS,
        IS_SHORT=logits.dtype == torch.bfloat16,
        num_warps=16,
        **options,
    )
    race_kernel[(num_rows, num_pieces)](
        logits,
        rows.temperatures,
        rows.choices,
        rows.positions,
        rows.seed_lows,
        rows.seed_highs,
        maxima,
        floors,
        last_ids,
        scores,
        ids,
        vocab_size,
        num_pieces,
        PIECE=_PIECE,
        num_warps=8,
        **options,
    )
    block = triton.next_power_of_2(num_pieces)
    winner_kernel[(num_rows,)](
        scores, ids, output, num_pieces, vocab_size, BLOCK=block, num_warps=1, **options
    )
