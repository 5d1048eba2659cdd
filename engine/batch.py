"""What travels through one engine step: SchedulerOutput > ForwardBatch > ModelRunnerOutput."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engine.request import Request

_TENSORS = (
    "token_ids", "positions", "slot_blocks", "slot_offsets", "query_starts", "seq_lens",
    "block_tables", "logit_indices",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """A request's part of a step: compute the next ``num_new_tokens`` of its known tokens."""

    request: Request
    num_new_tokens: int

    @property
    def samples(self) -> bool:
        """Whether the step reaches the last known token, so that new ones are drawn."""
        return self.num_new_tokens == self.request.num_uncomputed_tokens


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """What one step computes. Every block that the step writes is already in the block tables."""

    scheduled: tuple[ScheduledRequest, ...]

    @property
    def num_tokens(self) -> int:
        return sum(part.num_new_tokens for part in self.scheduled)


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """Flat tensors for one forward of T tokens from S sequences, R of which need logits.

    ``token_ids``, ``positions``: (T,) int64. ``slot_blocks``, ``slot_offsets``: (T,) int64, where
    each token's K and V go: block id and place within the block. ``query_starts``: (S + 1,)
    int64, offsets of the sequences in the flat tensors. ``seq_lens``: (S,) int64, tokens with KV
    after this step. ``block_tables``: (S, max blocks) int64, padded with block 0, the sink.
    ``logit_indices``: (R,) int64, flat positions whose hidden state becomes logits.
    ``query_lens`` and ``context_lens`` repeat the lengths on the host, for planning.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slot_blocks: torch.Tensor
    slot_offsets: torch.Tensor
    query_starts: torch.Tensor
    seq_lens: torch.Tensor
    block_tables: torch.Tensor
    logit_indices: torch.Tensor
    query_lens: tuple[int, ...]
    context_lens: tuple[int, ...]

    def to(self, device: torch.device) -> "ForwardBatch":
        """A copy whose tensors are on ``device``, perhaps still on their way: to a GPU all go in
        one piece."""
        tensors: dict[str, Any] = {name: getattr(self, name) for name in _TENSORS}
        if device.type != "cuda":
            return replace(self, **{name: each.to(device) for name, each in tensors.items()})
        # Each begins where 16 bytes do: Triton compiles anew for addresses that do not.
        rooms = [each.numel() + each.numel() % 2 for each in tensors.values()]
        packed = torch.empty(sum(rooms), dtype=torch.int64, pin_memory=True)
        for each, room in zip(tensors.values(), torch.split(packed, rooms), strict=True):
            room[: each.numel()] = each.flatten()
        moved = torch.split(packed.to(device, non_blocking=True), rooms)
        for (name, each), room in zip(tensors.items(), moved, strict=True):
            tensors[name] = room[: each.numel()].view(each.shape)
        return replace(self, **tensors)

    def arrays(self) -> list[NDArray[np.int64]]:
        """The whole batch, which must be on the host, as ``from_arrays`` takes it."""
        tensors = (getattr(self, name).numpy() for name in _TENSORS)
        return [*tensors, np.array(self.query_lens), np.array(self.context_lens)]

    @classmethod
    def from_arrays(cls, arrays: Sequence[NDArray[np.int64]]) -> "ForwardBatch":
        *tensors, query_lens, context_lens = arrays
        values: dict[str, Any] = {
            name: torch.tensor(array) for name, array in zip(_TENSORS, tensors, strict=True)
        }
        return cls(
            **values,
            query_lens=tuple(query_lens.tolist()),
            context_lens=tuple(context_lens.tolist()),
        )

    @property
    def is_decode(self) -> bool:
        """Whether every sequence brings exactly one token."""
        return len(self.query_lens) == self.token_ids.shape[0]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probability of a drawn token and of the likeliest ones, best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """A token drawn for one choice of a request."""

    choice: int
    token_id: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """Seconds, by the device's clock, that a step took it, and that it had computed nothing from
    the end of the step before on: when the host launched it is in neither, only what the host still
    had to launch behind a captured step."""

    computing: float
    idle: float


@dataclass(frozen=True, slots=True)
class ModelRunnerOutput:
    """One tuple of samples per scheduled request, in order; empty where the step drew nothing.

    ``device_time`` is None where a host could make it longer: on a CPU, for steps that are not
    captured, and with several ranks.
    """

    samples: tuple[tuple[Sample, ...], ...]
    device_time: DeviceTime | None = None
