"""Requests that are wrong are refused with a reason and the field; right ones are completed."""

import math
import re
from pathlib import Path
from typing import Any

import pytest

from baton.v1 import generation_pb2
from baton.v1.generation_pb2 import (
    CHAT_ROLE_ASSISTANT,
    CHAT_ROLE_SYSTEM,
    CHAT_ROLE_UNSPECIFIED,
    CHAT_ROLE_USER,
    Chat,
    ChatMessage,
    GenerateRequest,
    Prompt,
    SamplingParams,
    TokenIds,
)
from chassis.errors import InvalidArgument
from chassis.reasons import Reason
from chassis.sampling_ranges import (
    LOGIT_BIAS_RANGE,
    MAX_LOGIT_BIASES,
    MAX_STOP_BYTES,
    MAX_STOP_TOKEN_IDS,
    MAX_STOPS,
    RANGES,
)
from gateway.model_limits import ModelLimits
from gateway.sampling import DEFAULTS
from gateway.tokenizer import Tokenizer, load_tokenizer
from gateway.validation import ValidatedRequest, check_request, finish_request
from tests.gateway.text.vocabularies import KEYS, byte_level_metadata, write_gguf

MESSAGES = "prompt.chat.messages"


def validate(
    request: GenerateRequest, tokenizer: Tokenizer, limits: ModelLimits
) -> ValidatedRequest:
    """Both steps, as the gateway takes them."""
    check_request(request, limits)
    return finish_request(request, tokenizer, limits)


def _text(text: str) -> Prompt:
    return Prompt(text=text)


def _ids(*ids: int) -> Prompt:
    return Prompt(token_ids=TokenIds(ids=ids))


def _chat(*turns: tuple[int, str]) -> Prompt:
    messages = [ChatMessage(role=role, content=content) for role, content in turns]  # type: ignore[arg-type]
    return Prompt(chat=Chat(messages=messages))


USER, ASSISTANT, SYSTEM = (
    (CHAT_ROLE_USER, "hi"),
    (CHAT_ROLE_ASSISTANT, "hello"),
    (CHAT_ROLE_SYSTEM, "be kind"),
)


@pytest.mark.parametrize(
    ("prompt", "reason", "field"),
    [
        pytest.param(Prompt(), Reason.PROMPT_MISSING, "prompt", id="missing"),
        pytest.param(_text(""), Reason.PROMPT_EMPTY, "prompt.text", id="empty text"),
        pytest.param(_text("x" * 10_000_000), Reason.PROMPT_TOO_LARGE, "prompt.text", id="10 MB"),
        pytest.param(_text("\u4f60" * 100_000), Reason.PROMPT_TOO_LARGE, "prompt.text", id="bytes"),
        pytest.param(_ids(), Reason.PROMPT_EMPTY, "prompt.token_ids.ids", id="no ids"),
        pytest.param(
            _ids(1, 2, 49152), Reason.TOKEN_ID_UNKNOWN, "prompt.token_ids.ids[2]", id="unknown id"
        ),
        pytest.param(
            _ids(*[5] * 8193), Reason.CONTEXT_EXCEEDED, "prompt.token_ids.ids", id="many ids"
        ),
        pytest.param(_ids(*[5] * 8192), Reason.CONTEXT_EXCEEDED, "prompt", id="no room"),
        pytest.param(_text("a b " * 8000), Reason.CONTEXT_EXCEEDED, "prompt", id="long text"),
        pytest.param(_chat(), Reason.PROMPT_EMPTY, MESSAGES, id="no messages"),
        pytest.param(_chat((CHAT_ROLE_USER, "")), Reason.PROMPT_EMPTY, MESSAGES, id="no words"),
        pytest.param(
            _chat((CHAT_ROLE_USER, "x" * 10_000_000)),
            Reason.PROMPT_TOO_LARGE,
            MESSAGES,
            id="10 MB chat",
        ),
        pytest.param(_chat(*[USER] * 9000), Reason.PROMPT_TOO_LARGE, MESSAGES, id="many messages"),
        pytest.param(
            _chat((CHAT_ROLE_UNSPECIFIED, "hi")),
            Reason.CHAT_ROLE_INVALID,
            f"{MESSAGES}[0].role",
            id="no role",
        ),
        pytest.param(
            _chat(USER, (77, "hi"), USER),
            Reason.CHAT_ROLE_INVALID,
            f"{MESSAGES}[1].role",
            id="unheard-of role",
        ),
        pytest.param(
            _chat(USER, SYSTEM, USER),
            Reason.CHAT_ORDER_INVALID,
            f"{MESSAGES}[1].role",
            id="late system message",
        ),
        pytest.param(
            _chat(USER, ASSISTANT),
            Reason.CHAT_ORDER_INVALID,
            f"{MESSAGES}[1].role",
            id="assistant last",
        ),
        pytest.param(
            _chat(SYSTEM), Reason.CHAT_ORDER_INVALID, f"{MESSAGES}[0].role", id="system only"
        ),
    ],
)
def test_a_bad_prompt_is_refused(
    smollm2: Tokenizer, limits: ModelLimits, prompt: Prompt, reason: Reason, field: str
) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        validate(GenerateRequest(prompt=prompt), smollm2, limits)

    assert refusal.value.reason == reason
    assert field in [violation.field for violation in refusal.value.violations]


def _bad_numbers() -> list[tuple[str, float, Reason]]:
    rows = []
    for name, allowed in RANGES.items():
        is_float = name not in ("n", "logprobs")
        step = 0.01 if is_float else 1
        rows.append((name, allowed.high + step, Reason.VALUE_OUT_OF_RANGE))
        if is_float:
            below = allowed.low if allowed.above_low else allowed.low - step
            rows.append((name, below, Reason.VALUE_OUT_OF_RANGE))
            rows += [
                (name, value, Reason.VALUE_NOT_FINITE) for value in (math.nan, math.inf, -math.inf)
            ]
    return [*rows, ("n", 0, Reason.VALUE_OUT_OF_RANGE)]


@pytest.mark.parametrize(("name", "value", "reason"), _bad_numbers())
def test_a_number_out_of_its_range_is_refused(
    limits: ModelLimits, name: str, value: float, reason: Reason
) -> None:
    request = GenerateRequest(prompt=_text("hi"), sampling=SamplingParams(**{name: value}))  # type: ignore[arg-type]

    with pytest.raises(InvalidArgument) as refusal:
        check_request(request, limits)

    assert refusal.value.reason == reason
    assert [violation.field for violation in refusal.value.violations] == [f"sampling.{name}"]


@pytest.mark.parametrize("name", RANGES)
def test_the_ends_of_a_range_are_in_it(limits: ModelLimits, name: Any) -> None:
    allowed = RANGES[name]
    for value in (allowed.high, allowed.low + (0.01 if allowed.above_low else 0)):
        cast = int if name in ("n", "logprobs") else float
        sampling = SamplingParams(**{name: cast(value)})  # type: ignore[arg-type]
        check_request(GenerateRequest(prompt=_text("hi"), sampling=sampling), limits)


@pytest.mark.parametrize(
    ("sampling", "reason", "field"),
    [
        (SamplingParams(max_tokens=0), Reason.VALUE_OUT_OF_RANGE, "max_tokens"),
        (SamplingParams(max_tokens=8192), Reason.CONTEXT_EXCEEDED, "max_tokens"),
        (SamplingParams(max_tokens=2**32 - 1), Reason.CONTEXT_EXCEEDED, "max_tokens"),
        (SamplingParams(min_tokens=3, max_tokens=2), Reason.VALUE_OUT_OF_RANGE, "min_tokens"),
        (SamplingParams(min_tokens=8192), Reason.VALUE_OUT_OF_RANGE, "min_tokens"),
        (SamplingParams(stop=["x"] * 17), Reason.TOO_MANY_ENTRIES, "stop"),
        (SamplingParams(stop=["ok", ""]), Reason.STOP_INVALID, "stop[1]"),
        (SamplingParams(stop=["\u4f60" * 86]), Reason.STOP_INVALID, "stop[0]"),
        (SamplingParams(stop_token_ids=[0] * 65), Reason.TOO_MANY_ENTRIES, "stop_token_ids"),
        (SamplingParams(stop_token_ids=[49152]), Reason.TOKEN_ID_UNKNOWN, "stop_token_ids[0]"),
        (
            SamplingParams(logit_bias=dict.fromkeys(range(1025), 1.0)),
            Reason.TOO_MANY_ENTRIES,
            "logit_bias",
        ),
        (SamplingParams(logit_bias={49152: 1.0}), Reason.TOKEN_ID_UNKNOWN, "logit_bias[49152]"),
        (SamplingParams(logit_bias={7: 100.5}), Reason.VALUE_OUT_OF_RANGE, "logit_bias[7]"),
        (SamplingParams(logit_bias={7: math.nan}), Reason.VALUE_NOT_FINITE, "logit_bias[7]"),
    ],
    ids=lambda value: str(value).replace("\n", " ")[:30],
)
def test_bad_sampling_is_refused(
    smollm2: Tokenizer, limits: ModelLimits, sampling: SamplingParams, reason: Reason, field: str
) -> None:
    request = GenerateRequest(prompt=_text("hi"), sampling=sampling)

    with pytest.raises(InvalidArgument) as refusal:
        validate(request, smollm2, limits)

    assert refusal.value.reason == reason
    assert [violation.field for violation in refusal.value.violations] == [f"sampling.{field}"]


def test_the_largest_lists_are_taken(smollm2: Tokenizer, limits: ModelLimits) -> None:
    sampling = SamplingParams(
        stop=["x" * 256] * 16,
        stop_token_ids=[49151] * 64,
        logit_bias=dict.fromkeys(range(1024), -100.0),
        max_tokens=8191,
    )

    validate(GenerateRequest(prompt=_ids(5), sampling=sampling), smollm2, limits)


def test_everything_wrong_is_said_at_once(limits: ModelLimits) -> None:
    sampling = SamplingParams(temperature=math.nan, top_p=0, n=17, stop=[""])

    with pytest.raises(
        InvalidArgument, match=r"sampling.temperature: nan .* \(and 3 more\)"
    ) as refusal:
        check_request(GenerateRequest(prompt=_text("hi"), sampling=sampling), limits)

    assert [violation.field for violation in refusal.value.violations] == [
        "sampling.temperature",
        "sampling.top_p",
        "sampling.n",
        "sampling.stop[0]",
    ]


def test_defaults_are_resolved(smollm2: Tokenizer, limits: ModelLimits) -> None:
    request = GenerateRequest(prompt=_text("Hello, world!"))

    validated = validate(request, smollm2, limits)

    assert validated.prompt_token_ids == smollm2.encode("Hello, world!")
    sampling = validated.sampling
    assert {name: getattr(sampling, name) for name in DEFAULTS} == DEFAULTS
    assert sampling.max_tokens == 8192 - len(validated.prompt_token_ids)
    assert sampling.HasField("seed")
    assert not sampling.HasField("logprobs")
    assert not request.HasField("sampling")


def test_two_requests_without_a_seed_get_different_ones(
    smollm2: Tokenizer, limits: ModelLimits
) -> None:
    request = GenerateRequest(prompt=_ids(5))

    seeds = {validate(request, smollm2, limits).sampling.seed for _ in range(20)}

    assert len(seeds) == 20


def test_what_the_client_says_is_kept(smollm2: Tokenizer, limits: ModelLimits) -> None:
    sampling = SamplingParams(
        temperature=0,
        top_p=0.5,
        top_k=7,
        min_p=0.25,
        seed=0,
        presence_penalty=-2,
        frequency_penalty=2,
        repetition_penalty=1.5,
        logit_bias={3: -100},
        stop=["x"],
        stop_token_ids=[9],
        max_tokens=5,
        min_tokens=2,
        ignore_eos=True,
        n=3,
        logprobs=0,
    )

    request = GenerateRequest(prompt=_ids(5), sampling=sampling)

    assert validate(request, smollm2, limits).sampling == sampling


def test_the_workers_context_counts_where_it_is_smaller(smollm2: Tokenizer) -> None:
    limits = ModelLimits.of(smollm2, max_context_tokens=100)

    assert validate(GenerateRequest(prompt=_ids(5)), smollm2, limits).sampling.max_tokens == 99
    assert ModelLimits.of(smollm2, max_context_tokens=10**6).max_context_tokens == 8192


def test_token_ids_of_control_tokens_are_taken_as_they_are(
    smollm2: Tokenizer, limits: ModelLimits
) -> None:
    validated = validate(GenerateRequest(prompt=_ids(1, 2, 0)), smollm2, limits)

    assert validated.prompt_token_ids == [1, 2, 0]


def _chat_model(smollm2_path: Path, tmp_path: Path, template: str | None) -> Tokenizer:
    metadata = byte_level_metadata(smollm2_path, "smollm") | {KEYS.CHAT_TEMPLATE: template}
    if template is None:
        del metadata[KEYS.CHAT_TEMPLATE]
    return load_tokenizer(write_gguf(tmp_path / "m.gguf", metadata))


@pytest.mark.parametrize(
    ("template", "reason", "message"),
    [
        (None, Reason.CHAT_UNSUPPORTED, "the model has no chat template"),
        ("{{ raise_exception('no') }}", Reason.CHAT_TEMPLATE_REFUSED, "refuses: no"),
        ("{{ messages[9].x.y }}", Reason.CHAT_TEMPLATE_REFUSED, "refuses: "),
        (
            "{% for i in range(99999) %}" + "x" * 99 + "{% endfor %}",
            Reason.PROMPT_TOO_LARGE,
            "over",
        ),
        ("", Reason.PROMPT_EMPTY, "must not be empty"),
    ],
)
def test_a_chat_that_the_template_cannot_take_is_refused(
    smollm2_path: Path, tmp_path: Path, template: str | None, reason: Reason, message: str
) -> None:
    tokenizer = _chat_model(smollm2_path, tmp_path, template)

    with pytest.raises(InvalidArgument, match=message) as refusal:
        validate(GenerateRequest(prompt=_chat(USER)), tokenizer, ModelLimits.of(tokenizer))

    assert refusal.value.reason == reason


def test_ranges_and_defaults_are_those_the_proto_promises() -> None:
    proto = Path(generation_pb2.__file__).with_name("generation.proto").read_text()
    message = re.search(r"message SamplingParams \{(.*?)\n\}", proto, re.DOTALL)
    assert message is not None
    fields = re.findall(r"// ([^\n]*)\n  [\w<>, ]* (\w+) = \d+;", message[1])
    comments = {name: comment for comment, name in fields}

    for name, default in DEFAULTS.items():
        assert f"Default {default:g}." in comments[name]
    for ranged, allowed in RANGES.items():
        if ranged != "logprobs":
            assert f"in {allowed}" in comments[ranged]
    assert f"in {LOGIT_BIAS_RANGE}. At most {MAX_LOGIT_BIASES} entries" in comments["logit_bias"]
    assert f"At most {MAX_STOPS} of at most {MAX_STOP_BYTES} bytes each" in comments["stop"]
    assert f"At most {MAX_STOP_TOKEN_IDS}." in comments["stop_token_ids"]
    assert "at most 20" in comments["logprobs"]
    assert RANGES["logprobs"].high == 20
