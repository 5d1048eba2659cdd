"""An answer put together from its stream."""

from google.protobuf.duration_pb2 import Duration

from baton.v1 import gateway_pb2, generation_pb2
from batonctl.answer import Answer

EOS = generation_pb2.FinishInfo(reason=generation_pb2.FINISH_REASON_EOS, stop_token_id=2)


def delta(
    index: int, text: str, *ids: int, finish: generation_pb2.FinishInfo | None = None
) -> gateway_pb2.ChoiceDelta:
    return gateway_pb2.ChoiceDelta(index=index, text=text, token_ids=ids, finish=finish)


def summary() -> gateway_pb2.GenerateSummary:
    return gateway_pb2.GenerateSummary(
        request_id="ab" * 16,
        model="m",
        usage=generation_pb2.Usage(prompt_tokens=3, cached_tokens=1, completion_tokens=5),
        timings=generation_pb2.Timings(
            time_to_first_token=Duration(nanos=250_000_000),
            decode=Duration(seconds=2),
            total=Duration(seconds=2, nanos=250_000_000),
        ),
    )


def answer() -> Answer:
    result = Answer()
    result.add(gateway_pb2.GenerateStreamResponse(deltas=[delta(1, "x", 9), delta(0, "He", 5)]))
    result.add(gateway_pb2.GenerateStreamResponse(deltas=[delta(0, "llo", 6, 7, finish=EOS)]))
    last = delta(1, "", 2, finish=EOS)
    result.add(gateway_pb2.GenerateStreamResponse(deltas=[last], summary=summary()))
    return result


def test_deltas_of_interleaved_choices_are_joined() -> None:
    shown = answer().to_json()
    finish = {"reason": "eos", "stop_token_id": 2}
    assert shown["choices"] == [
        {"index": 0, "text": "Hello", "token_ids": [5, 6, 7], "finish": finish},
        {"index": 1, "text": "x", "token_ids": [9, 2], "finish": finish},
    ]


def test_times_are_seconds_and_unmeasured_stages_are_left_out() -> None:
    timings = answer().to_json()["timings"]
    assert timings == {
        "time_to_first_token_seconds": 0.25,
        "decode_seconds": 2.0,
        "total_seconds": 2.25,
    }


def test_the_rate_counts_the_tokens_after_each_choices_first() -> None:
    # 5 tokens over 2 choices: 3 of them were decoded, in 2 seconds.
    assert answer().statistics() == (
        f"3 + 5 tokens, first after 0.250 s, then 1.5 tokens/s, request {'ab' * 16}"
    )


def test_an_answer_without_its_end_is_still_json() -> None:
    partial = Answer()
    partial.add(gateway_pb2.GenerateStreamResponse(deltas=[delta(0, "He", 5)]))
    assert partial.to_json() == {"choices": [{"index": 0, "text": "He", "token_ids": [5]}]}
    assert partial.statistics() == "interrupted"
