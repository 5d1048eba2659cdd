"""From a client's request to one that workers can take as it is."""

from dataclasses import dataclass

from baton.v1.generation_pb2 import GenerateRequest, SamplingParams
from chassis.complaints import Complaints
from chassis.sampling_ranges import check_sampling
from gateway.model_limits import ModelLimits
from gateway.prompt import check_prompt, check_token_ids, encode_prompt
from gateway.sampling import complete_sampling
from gateway.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ValidatedRequest:
    """A request that can be served: the prompt's tokens fit the context together with
    ``sampling.max_tokens``, and ``sampling`` has every default resolved, seed included."""

    prompt_token_ids: list[int]
    sampling: SamplingParams


def check_request(request: GenerateRequest, limits: ModelLimits) -> None:
    """Refuses what can be refused without reading the prompt; quick, whatever the size.

    Raises InvalidArgument with a reason and the fields.
    """
    check_prompt(request.prompt, limits)
    complaints = Complaints()
    check_sampling(complaints, request.sampling, limits.vocab_size)
    complaints.raise_any()


def finish_request(
    request: GenerateRequest, tokenizer: Tokenizer, limits: ModelLimits
) -> ValidatedRequest:
    """Reads the prompt of a request that passed ``check_request`` and resolves its defaults.

    Safe in a thread, and best run in one where the prompt is long. Raises InvalidArgument.
    """
    prompt_token_ids = encode_prompt(request.prompt, tokenizer, limits)
    check_token_ids(prompt_token_ids, "prompt", limits)
    sampling = complete_sampling(request.sampling, len(prompt_token_ids), limits)
    return ValidatedRequest(prompt_token_ids, sampling)
