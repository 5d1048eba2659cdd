"""How often a request is tried again: what counts against it, and what does not."""

from baton.v1 import decode_pb2
from chassis.errors import Aborted, Unavailable
from gateway.generation import GenerationLimits
from tests.gateway.conftest import OpenStage
from tests.gateway.scripted_workers import LENGTH
from tests.gateway.stage import StageOptions, error_of, request

REVOKED = Aborted("the blocks were needed", reason="LEASE_REVOKED")


async def test_the_number_of_attempts_is_bounded(open_stage: OpenStage) -> None:
    stage = await open_stage(StageOptions(limits=GenerationLimits(2, 4096)))
    call = stage.stub.Generate(request())
    for _ in range(2):
        prefill, _decode = await stage.legs()
        prefill.fail(REVOKED)
    error = await error_of(call)
    assert isinstance(error, Unavailable)
    assert error.reason == "ATTEMPTS_EXHAUSTED"
    assert stage.prefill[0].num_calls == 2


async def test_preemptions_of_a_request_that_gets_on_are_not_counted(open_stage: OpenStage) -> None:
    stage = await open_stage(StageOptions(limits=GenerationLimits(2, 4096)))
    call = stage.stub.Generate(request(max_tokens=9))
    for index in range(0, 8, 2):
        prefill, decode = await stage.legs()
        prefill.answer(100 + index)
        decode.tokens([101 + index], index + 1)
        decode.finished(decode_pb2.OUTCOME_PREEMPTED, unfinished_choices=[0])
    last = await stage.prefill[0].calls.get()
    last.answer(108, LENGTH)
    assert list((await call).choices[0].token_ids) == list(range(100, 109))


async def test_leases_revoked_after_a_token_are_not_counted(open_stage: OpenStage) -> None:
    stage = await open_stage(StageOptions(limits=GenerationLimits(2, 4096)))
    call = stage.stub.Generate(request(max_tokens=5))
    for index in range(4):
        prefill, _decode = await stage.legs()
        assert prefill.first_index == index
        prefill.answer(100 + index)
        prefill.fail(REVOKED)
    last = await stage.prefill[0].calls.get()
    last.answer(104, LENGTH)
    assert list((await call).choices[0].token_ids) == list(range(100, 105))


async def test_preemptions_without_a_token_are_counted(open_stage: OpenStage) -> None:
    stage = await open_stage(StageOptions(limits=GenerationLimits(2, 4096)))
    call = stage.stub.Generate(request(max_tokens=9))
    for index in range(2):
        prefill, decode = await stage.legs()
        prefill.answer(100 + index)
        decode.finished(decode_pb2.OUTCOME_PREEMPTED, unfinished_choices=[0])
    assert (await error_of(call)).reason == "ATTEMPTS_EXHAUSTED"
