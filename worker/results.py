"""The engine's results as messages."""

from baton.v1 import generation_pb2
from engine.batch import TokenLogprobs
from engine.request import RequestStatus

_REASONS = {
    RequestStatus.FINISHED_EOS: generation_pb2.FINISH_REASON_EOS,
    RequestStatus.FINISHED_STOP: generation_pb2.FINISH_REASON_STOP_TOKEN,
    RequestStatus.FINISHED_LENGTH: generation_pb2.FINISH_REASON_LENGTH,
}


def finish_to_pb(status: RequestStatus, token_id: int) -> generation_pb2.FinishInfo:
    """How a choice ended on ``token_id``; ``status`` is one of the three natural ends."""
    info = generation_pb2.FinishInfo(reason=_REASONS[status])
    if status is not RequestStatus.FINISHED_LENGTH:
        info.stop_token_id = token_id
    return info


def logprobs_to_pb(logprobs: TokenLogprobs) -> generation_pb2.TokenLogprobs:
    """Texts stay empty: the gateway, which has the tokenizer, sets them."""
    return generation_pb2.TokenLogprobs(
        chosen=generation_pb2.Logprob(token_id=logprobs.token_id, logprob=logprobs.logprob),
        top=[
            generation_pb2.Logprob(token_id=token_id, logprob=logprob)
            for token_id, logprob in logprobs.top
        ],
    )
