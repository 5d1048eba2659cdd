"""Products in which a row gets the same bits whatever rows come with it.

A GEMM chooses its kernel, and with it the order in which it adds, by the number of rows. So such a
product is computed only with numbers of rows at which every row comes out alike. Which ones these
are depends on the processor and the build of torch; it is found out when a model is loaded.
"""

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from engine.errors import ConfigurationError

ROW_COUNTS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256)
# Few tokens of a step need logits, and to try many rows with a weight that large takes long.
HEAD_ROW_COUNTS = (1, 2, 4, 8, 16, 32, 64)


def invariant_row_counts(
    product: Callable[[int], torch.Tensor], counts: Sequence[int]
) -> tuple[int, ...]:
    """Those of ``counts`` (ascending) at which rows are alike, the largest that serves among them.

    ``product`` multiplies so many copies of one row and returns all results, (.., N) float32.
    Raises ConfigurationError where no number will do; one row by itself always does.
    """
    results = {count: product(count).flatten(0, -2).view(torch.int32) for count in counts}
    for largest in reversed(counts):
        expected = results[largest][0]
        alike = [
            count for count in counts if count <= largest and (results[count] == expected).all()
        ]
        if largest in alike:
            return tuple(alike)
    raise ConfigurationError(
        f"torch {torch.__version__} multiplies no number of float32 rows alike on this machine; "
        f"set dtype to bfloat16"
    )


def multiply_in_counts(
    product: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, counts: Sequence[int]
) -> torch.Tensor:
    """``product`` of ``x`` (T, K), which is (T, N), in pieces padded to one of ``counts``."""
    if x.shape[0] in counts:
        return product(x)
    pieces = []
    for start in range(0, x.shape[0], counts[-1]):
        piece = x[start : start + counts[-1]]
        num_rows = piece.shape[0]
        padding = at_least(counts, num_rows) - num_rows
        pieces.append(product(functional.pad(piece, (0, 0, 0, padding)))[:num_rows])
    return torch.cat(pieces)


def at_least(counts: Sequence[int], num_rows: int) -> int:
    """The least of ``counts`` that holds ``num_rows``."""
    return next(count for count in counts if count >= num_rows)
