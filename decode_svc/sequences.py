"""The engine's requests of an attempt: its prompt where it is computed here, and its choices."""

from decode_svc.attempt import Attempt
from engine.request import Request, RequestStatus
from kvtransfer.handoff import FirstSample


def prompt_request(attempt: Attempt, cached_tokens: int) -> Request:
    """The prompt as what this worker computes; draws one first token per choice."""
    return Request(
        request_id=attempt.attempt_id.hex(),
        token_ids=list(attempt.token_ids),
        num_prompt_tokens=attempt.num_prompt_tokens,
        params=attempt.params,
        choices=attempt.choices,
        cache_salt=attempt.cache_salt,
        status=RequestStatus.RUNNING,
        block_table=attempt.prompt_blocks,
        num_computed_tokens=cached_tokens,
        num_cached_tokens=cached_tokens,
        block_hashes=list(attempt.block_hashes),
    )


def choice_request(attempt: Attempt, first: FirstSample, block_table: list[int]) -> Request:
    """A choice that has its first token and the KV of everything before it."""
    return Request(
        request_id=f"{attempt.attempt_id.hex()}/{first.choice}",
        token_ids=[*attempt.token_ids, first.token_id],
        num_prompt_tokens=attempt.num_prompt_tokens,
        params=attempt.params,
        choices=(first.choice,),
        cache_salt=attempt.cache_salt,
        status=RequestStatus.RUNNING,
        block_table=block_table,
        num_computed_tokens=attempt.num_tokens,
        block_hashes=list(attempt.block_hashes),
    )
