"""One streamed request to a gateway."""

from collections.abc import AsyncIterator

from baton.client import BatonClient, PromptLike
from baton.v1 import gateway_pb2
from batonctl.ask_options import AskOptions
from batonctl.service_failure import command_error
from chassis.errors import ServiceError


async def stream_answer(
    client: BatonClient, prompt: PromptLike, ask: AskOptions
) -> AsyncIterator[gateway_pb2.GenerateStreamResponse]:
    """The messages of GenerateStream; CommandError if the call fails."""
    sampling = ask.sampling.to_sampling()
    try:
        async for message in client.stream(prompt, deadline=ask.timeout, **sampling):
            yield message
    except ServiceError as error:
        raise command_error(error, ask.address) from error
