"""What a message says can never become a control token."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.chat_template import ChatMessage
from gateway.tokenizer import Tokenizer, load_tokenizer
from tests.gateway.text.folders import ENGINES, write_folder
from tests.gateway.text.vocabularies import KEYS, spm_metadata, write_gguf

MAX_CHARS = 100_000
LLAMA2_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}"
    "[INST] {{ m.content | trim }} [/INST]{% else %} {{ m.content }} {{ eos_token }}{% endif %}"
    "{% endfor %}"
)
CONTROL_WORDS = [
    *("<|im_end|>", "<|im_start|>", "<|endoftext|>", "<s>", "</s>", "[INST]", "[/INST]", "<unk>"),
    *("<|im_", "end|>", "<", ">", "[", "]", "|>", "</", "s>", " ", "\n", "<|im_end", "im_end|>"),
]
CONTENT = st.lists(st.one_of(st.sampled_from(CONTROL_WORDS), st.text(max_size=4)), max_size=8).map(
    "".join
)


@pytest.fixture(scope="module")
def chat_tokenizers(
    smollm2: Tokenizer, smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Tokenizer]:
    root = tmp_path_factory.mktemp("chat")
    spm = spm_metadata(smollm2_path) | {KEYS.CHAT_TEMPLATE: LLAMA2_TEMPLATE}
    found = {"smollm2": smollm2, "gguf spm": load_tokenizer(write_gguf(root / "spm.gguf", spm))}
    for kind, build in ENGINES.items():
        folder = write_folder(root / kind, build(smollm2_path))
        (folder / "chat_template.jinja").write_text(LLAMA2_TEMPLATE)
        found[kind] = load_tokenizer(folder)
    return found


def _num_control(tokenizer: Tokenizer, ids: list[int]) -> int:
    return sum(i in tokenizer.special_token_ids for i in ids)


@pytest.mark.parametrize("kind", ["smollm2", "gguf spm", *ENGINES])
@settings(max_examples=100, deadline=None)
@given(question=CONTENT, answer=CONTENT, again=CONTENT)
def test_messages_add_no_control_token_and_lose_no_character(
    kind: str, chat_tokenizers: dict[str, Tokenizer], question: str, answer: str, again: str
) -> None:
    tokenizer = chat_tokenizers[kind]
    assert tokenizer.chat_template is not None
    roles = ("user", "assistant", "user")
    chat = [ChatMessage(r, c) for r, c in zip(roles, (question, answer, again), strict=True)]
    harmless = [ChatMessage(role, "hi") for role in roles]

    ids = tokenizer.encode_chat(chat, MAX_CHARS)

    assert _num_control(tokenizer, ids) == _num_control(
        tokenizer, tokenizer.encode_chat(harmless, MAX_CHARS)
    )
    text = tokenizer.chat_template.render(chat, MAX_CHARS)
    if kind in ("smollm2", "byte-level"):
        # The others write spaces of their own after control tokens.
        assert tokenizer.decode(ids, skip_special_tokens=False) == _without_lost_bytes(text, kind)


def _without_lost_bytes(text: str, kind: str) -> str:
    """SmolLM2 has no tokens for some bytes, which no encoder can write."""
    lost = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xF1, 0xF2}
    return bytes(b for b in text.encode() if b not in lost).decode(errors="replace")


@pytest.mark.parametrize("kind", ["smollm2", "gguf spm", *ENGINES])
def test_harmless_messages_are_encoded_as_their_rendered_text(
    kind: str, chat_tokenizers: dict[str, Tokenizer]
) -> None:
    tokenizer = chat_tokenizers[kind]
    assert tokenizer.chat_template is not None
    chat = [ChatMessage("user", "  2 < 3 and a[1]\n\n"), ChatMessage("assistant", "yes ")]

    text = tokenizer.chat_template.render(chat, MAX_CHARS)

    assert tokenizer.encode_chat(chat, MAX_CHARS) == tokenizer.encode(text, False)


def test_marks_do_not_change_how_a_message_merges_with_the_template(smollm2: Tokenizer) -> None:
    # The break in the control word sends the message through the other encoder; what stands
    # around it must come out as it does without.
    marked = smollm2.encode_chat([ChatMessage("user", "\n\n x <|im_end|> y \n")], MAX_CHARS)
    broken = smollm2.encode_chat([ChatMessage("user", "\n\n x <|im_end | y \n")], MAX_CHARS)

    head = next(i for i, (a, b) in enumerate(zip(marked, broken, strict=False)) if a != b)
    tail = next(
        i for i, (a, b) in enumerate(zip(marked[::-1], broken[::-1], strict=False)) if a != b
    )
    text_between = smollm2.decode(marked[head : len(marked) - tail], skip_special_tokens=False)
    assert text_between in "<|im_end|>"


def test_raw_text_is_parsed_for_control_tokens(
    smollm2: Tokenizer, tokenizer_of: Callable[[str], Tokenizer]
) -> None:
    assert smollm2.encode("a<|im_end|>b") == [*smollm2.encode("a"), 2, *smollm2.encode("b")]
    assert 2 in tokenizer_of("spm").encode("a</s>b")


def test_the_start_token_stands_in_front_of_a_chat_exactly_once(
    smollm2_path: Path, tmp_path: Path
) -> None:
    def chat_ids(template: str) -> list[int]:
        metadata = spm_metadata(smollm2_path) | {KEYS.CHAT_TEMPLATE: template}
        tokenizer = load_tokenizer(write_gguf(tmp_path / "m.gguf", metadata))
        return tokenizer.encode_chat([ChatMessage("user", "hi")], MAX_CHARS)

    with_token = chat_ids(LLAMA2_TEMPLATE)

    assert with_token[0] == 1
    assert with_token[1] != 1
    assert chat_ids(LLAMA2_TEMPLATE.removeprefix("{{ bos_token }}")) == with_token
