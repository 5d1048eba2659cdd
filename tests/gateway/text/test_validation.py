"""Prompts that are wrong are refused with a reason and the field; right requests are completed."""

from pathlib import Path

import pytest

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
