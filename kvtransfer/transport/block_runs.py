"""Which blocks go where: blocks that lie side by side on both sides go together."""

from itertools import pairwise

import numpy as np
import numpy.typing as npt

BlockRuns = npt.NDArray[np.int64]
"""(N, 3), a row for each run: id of its first block there, of its first block here, and how many
blocks. In the order in which they were asked for; nobody writes to it."""


def cut_pieces(
    remote_ids: npt.ArrayLike, local_ids: npt.ArrayLike, max_blocks: int
) -> list[BlockRuns]:
    """Pairs ids position by position, ``max_blocks`` of them a piece; the last one has the rest.

    Raises ValueError where there are not as many on both sides.
    """
    there, here = (np.asarray(ids, dtype=np.int64) for ids in (remote_ids, local_ids))
    num_blocks = len(here)
    if len(there) != num_blocks:
        raise ValueError(f"{len(there)} blocks cannot go to {num_blocks} places")
    begins = np.ones(num_blocks, dtype=bool)
    begins[1:] = (there[1:] - there[:-1] != 1) | (here[1:] - here[:-1] != 1)
    begins[::max_blocks] = True
    firsts = begins.nonzero()[0]
    runs = np.empty((len(firsts), 3), dtype=np.int64)
    runs[:, 0], runs[:, 1] = there[firsts], here[firsts]
    runs[:-1, 2], runs[-1:, 2] = firsts[1:] - firsts[:-1], num_blocks - firsts[-1:]
    cuts = firsts.searchsorted(np.arange(0, num_blocks, max_blocks)).tolist()
    return [runs[first:end] for first, end in pairwise([*cuts, len(runs)])]


def count_blocks(runs: BlockRuns) -> int:
    return int(runs[:, 2].sum())


def each_block(runs: BlockRuns) -> BlockRuns:
    """The same blocks in runs of one."""
    counts = runs[:, 2]
    blocks = np.repeat(runs, counts, axis=0)
    blocks[:, :2] += (np.arange(len(blocks)) - np.repeat(counts.cumsum() - counts, counts))[:, None]
    blocks[:, 2] = 1
    return blocks
