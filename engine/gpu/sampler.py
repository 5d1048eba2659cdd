"""Draws on the GPU for requests of any parameters."""

from collections.abc import Sequence

import numpy as np
import torch

from engine.batch import Sample
from engine.gpu.request_rows import sampling_numbers
from engine.kernels.cuda.sample import SamplingRows, sample
from engine.logit_adjustment import LogitAdjustment
from engine.request import Request
from engine.sampler import samples_of


def is_plain(request: Request) -> bool:
    """Whether the request's logits are drawn from as they are, and nothing else is asked for."""
    params = request.params
    return (
        params.logprobs is None
        and params.repetition_penalty == 1.0
        and params.presence_penalty == 0.0
        and params.frequency_penalty == 0.0
        and not params.logit_bias
        and request.num_output_tokens + 1 >= params.min_tokens
    )


class GpuSampler:
    """Logits are adjusted and log probabilities ranked on the host; draws happen on the device."""

    def draw(self, logits: torch.Tensor, requests: Sequence[Request]) -> torch.Tensor:
        """Int32 token ids of every choice of every request, in order, on the device.

        ``logits`` (requests, vocabulary) are of plain requests, or came out of ``adjust``.
        """
        if not requests:
            return torch.empty(0, dtype=torch.int32, device=logits.device)
        owners = [row for row, each in enumerate(requests) for _ in each.choices]
        if len(owners) > len(requests):
            logits = logits[torch.tensor(owners).to(logits.device)]
        choices = [choice for each in requests for choice in each.choices]
        rows = _rows([requests[row] for row in owners], choices, logits.device)
        output = torch.empty(len(owners), dtype=torch.int32, device=logits.device)
        sample(logits.contiguous(), rows, output)
        return output

    def adjust(self, logits: torch.Tensor, requests: Sequence[Request]) -> torch.Tensor:
        """A float32 copy of ``logits`` with penalties, bias and masks applied."""
        adjusted = logits.float()
        for row, request in enumerate(requests):
            adjustment = LogitAdjustment(request)
            if not adjustment.is_identity:
                values = adjusted[row].cpu()
                adjustment.apply(values)
                adjusted[row] = values.to(adjusted.device)
        return adjusted

    def samples(
        self, logits: torch.Tensor | None, requests: Sequence[Request], token_ids: Sequence[int]
    ) -> list[tuple[Sample, ...]]:
        """The drawn tokens by request, with log probabilities of ``logits`` where asked for."""
        drawn = iter(token_ids)
        result = []
        for row, request in enumerate(requests):
            own = [next(drawn) for _ in request.choices]
            if request.params.logprobs is None:
                pairs = zip(request.choices, own, strict=True)
                result.append(tuple(Sample(choice, token_id) for choice, token_id in pairs))
            else:
                assert logits is not None
                result.append(samples_of(logits[row].cpu(), request, own))
        return result


def _rows(
    requests: Sequence[Request], choices: Sequence[int], device: torch.device
) -> SamplingRows:
    numbers = np.stack([sampling_numbers(each.params) for each in requests], axis=1)
    rest = np.array([choices, [each.num_tokens for each in requests]], dtype=np.int32)
    # Every row starts where 16 bytes do: Triton compiles anew for addresses that do not.
    padded = np.pad(np.concatenate((numbers, rest)), ((0, 0), (0, -len(requests) % 4)))
    packed = torch.from_numpy(padded)
    if device.type == "cuda":
        packed = packed.pin_memory()
    words = packed.to(device, non_blocking=True)[:, : len(requests)]
    return SamplingRows(
        temperatures=words[0].view(torch.float32),
        top_ps=words[1].view(torch.float32),
        min_ps=words[2].view(torch.float32),
        top_ks=words[3],
        seed_lows=words[4],
        seed_highs=words[5],
        choices=words[6],
        positions=words[7],
    )
