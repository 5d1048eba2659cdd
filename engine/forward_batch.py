"""Lays the sequences of a step out as flat tensors."""

import numpy as np
import torch

from engine.batch import ForwardBatch, SchedulerOutput


def build_forward_batch(output: SchedulerOutput, block_size: int) -> ForwardBatch:
    """The tensors of a step; every block that it writes must be in the block tables already."""
    parts = output.scheduled
    query_lens = np.array([part.num_new_tokens for part in parts])
    context_lens = np.array([part.request.num_computed_tokens for part in parts])
    starts = np.zeros(len(parts) + 1, dtype=np.int64)
    np.cumsum(query_lens, out=starts[1:])
    sequences = np.repeat(np.arange(len(parts)), query_lens)
    positions = np.arange(starts[-1]) + (context_lens - starts[:-1])[sequences]
    tables = _block_tables(output, context_lens + query_lens, block_size)
    token_ids: list[int] = []
    for part in parts:
        first = part.request.num_computed_tokens
        token_ids += part.request.token_ids[first : first + part.num_new_tokens]
    ends = [end - 1 for end, part in zip(starts[1:].tolist(), parts, strict=True) if part.samples]
    return ForwardBatch(
        token_ids=torch.tensor(token_ids),
        positions=torch.from_numpy(positions),
        slot_blocks=torch.from_numpy(tables[sequences, positions // block_size]),
        slot_offsets=torch.from_numpy(positions % block_size),
        query_starts=torch.from_numpy(starts),
        seq_lens=torch.from_numpy(context_lens + query_lens),
        block_tables=torch.from_numpy(tables),
        logit_indices=torch.tensor(ends, dtype=torch.int64),
        query_lens=tuple(query_lens.tolist()),
        context_lens=tuple(context_lens.tolist()),
    )


def _block_tables(output: SchedulerOutput, seq_lens: np.ndarray, block_size: int) -> np.ndarray:
    """(sequences, most blocks), the blocks that hold KV after the step, padded with the sink."""
    num_blocks = (-(-seq_lens // block_size)).tolist()
    tables = np.zeros((len(num_blocks), max(num_blocks)), dtype=np.int64)
    for row, (part, number) in enumerate(zip(output.scheduled, num_blocks, strict=True)):
        tables[row, :number] = part.request.block_table[:number]
    return tables
