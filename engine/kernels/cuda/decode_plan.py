"""Cuts the sequences of a decode step into pieces of about equal length, on the device."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from engine.kernels.cuda.launch import next_power_of_two, pdl_options

# Pieces are multiples of this many tokens, but a sequence's last.
PIECE_UNIT = 64


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """``pieces``: (places, 5) int32: a piece's sequence, or -1 where no piece takes the place; its
    first token and the one after its last; the place of its sequence's first piece, and their
    number. ``target``: how many pieces there should be, at most where sequences are fewer."""

    pieces: torch.Tensor
    target: int

    @classmethod
    def allocate(cls, num_sequences: int, target: int, device: torch.device) -> "DecodePlan":
        """Room for the most pieces that ``plan_decode`` makes of ``num_sequences``."""
        pieces = torch.empty(num_sequences + target, 5, dtype=torch.int32, device=device)
        return cls(pieces, target)


@triton.jit
def plan_decode_kernel(
    seq_lens,
    starts,
    pieces,
    num_sequences,
    num_places,
    target,
    window,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
    SHARED: tl.constexpr,
    PDL: tl.constexpr,
):
    sequence = tl.arange(0, BLOCK)
    exists = sequence < num_sequences
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    length = tl.load(seq_lens + sequence, mask=exists, other=0).to(tl.int32)
    seen = tl.minimum(length, window)
    if SHARED:
        seen = tl.minimum(seen, length - tl.load(starts + sequence, mask=exists, other=0))
    units = (seen + UNIT - 1) // UNIT
    longest = tl.maximum((tl.sum(units) + target - 1) // target, 1)
    if num_sequences <= target:
        # The least length of which there are no more pieces than programs run at the same time.
        most = tl.maximum(tl.max(units), 1)
        while longest < most:
            middle = (longest + most) // 2
            fits = tl.sum((units + middle - 1) // middle) <= target
            longest = tl.where(fits, longest, middle + 1)
            most = tl.where(fits, middle, most)
    number = (units + longest - 1) // longest
    end = tl.cumsum(number)
    start = end - number
    share = (units + tl.maximum(number, 1) - 1) // tl.maximum(number, 1) * UNIT
    for first in range(0, num_places, BLOCK):
        place = first + sequence
        tl.store(pieces + place * 5, -1, mask=place < num_places)
    # What follows overwrites some of these, with other threads.
    tl.debug_barrier()
    for piece in range(tl.max(number)):
        has = exists & (piece < number)
        begin = length - seen + piece * share
        row = pieces + (start + piece) * 5
        tl.store(row, sequence, mask=has)
        tl.store(row + 1, begin, mask=has)
        tl.store(row + 2, tl.minimum(begin + share, length), mask=has)
        tl.store(row + 3, start, mask=has)
        tl.store(row + 4, number, mask=has)


def plan_decode(
    seq_lens: torch.Tensor,
    plan: DecodePlan,
    window: int | None,
    starts: torch.Tensor | None = None,
) -> None:
    """Fills ``plan``, at least one piece a sequence.

    ``seq_lens``: (S,) integers above 0. With ``window`` only so many tokens at the end count, with
    ``starts``, (S,) integers below the lengths, only those from there on.
    """
    num_sequences = seq_lens.shape[0]
    plan_decode_kernel[(1,)](
        seq_lens,
        seq_lens if starts is None else starts,
        plan.pieces,
        num_sequences,
        plan.pieces.shape[0],
        plan.target,
        (1 << 31) - 1 if window is None else window,
        UNIT=PIECE_UNIT,
        BLOCK=next_power_of_two(num_sequences),
        SHARED=starts is not None,
        num_warps=4,
        **pdl_options(),
    )


def plan_decode_torch(
    seq_lens: torch.Tensor,
    plan: DecodePlan,
    window: int | None,
    starts: torch.Tensor | None = None,
) -> None:
    """The twin of ``plan_decode``."""
    lens = seq_lens.tolist()
    skipped = [0] * len(lens) if starts is None else starts.tolist()
    seen = [length if window is None else min(length, window) for length in lens]
    seen = [min(seen[i], lens[i] - skipped[i]) for i in range(len(lens))]
    units = [-(-length // PIECE_UNIT) for length in seen]
    longest = max(-(-sum(units) // plan.target), 1)
    if len(lens) <= plan.target:
        while sum(-(-number // longest) for number in units) > plan.target:
            longest += 1
    rows: list[tuple[int, int, int, int, int]] = []
    for sequence, length in enumerate(lens):
        start, number = len(rows), -(-units[sequence] // longest)
        share = -(-units[sequence] // number) * PIECE_UNIT
        for piece in range(number):
            begin = length - seen[sequence] + piece * share
            rows.append((sequence, begin, min(begin + share, length), start, number))
    assert len(rows) <= plan.pieces.shape[0], (len(rows), plan.pieces.shape)
    plan.pieces[:, 0] = -1
    plan.pieces[: len(rows)] = torch.tensor(rows)
