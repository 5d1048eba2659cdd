"""A choice's text, from tokens to deltas."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.choice_text import ChoiceText
from gateway.tokenizer import Tokenizer
from tests.gateway.text.corpus import CORPUS


def test_a_stop_string_over_token_borders_ends_the_text_before_it(smollm2: Tokenizer) -> None:
    choice = ChoiceText(smollm2, stop=["lo wor"])
    hello, world = smollm2.encode("hello world")

    assert choice.push(hello) == "hel"
    assert choice.push(world) == ""
    assert choice.matched_stop == "lo wor"
    assert choice.num_tokens == 2


def test_without_a_stop_finish_gives_what_was_held_back(smollm2: Tokenizer) -> None:
    choice = ChoiceText(smollm2, stop=["lo, there"])

    assert "".join(map(choice.push, smollm2.encode("hello"))) == "hel"
    assert choice.finish() == "lo"
    assert choice.matched_stop is None


def test_an_unfinished_character_shows_at_the_end(smollm2: Tokenizer) -> None:
    choice = ChoiceText(smollm2, stop=["\n"])

    assert choice.push(smollm2.encode("\U0001f9ff")[0]) == ""
    assert choice.finish() == "\ufffd"


def test_the_end_itself_can_complete_a_stop_string(smollm2: Tokenizer) -> None:
    choice = ChoiceText(smollm2, stop=["a\ufffd"])
    for token_id in smollm2.encode("ba\U0001f9ff")[:-1]:
        choice.push(token_id)

    assert choice.finish() == ""
    assert choice.matched_stop == "a\ufffd"


def test_min_tokens_come_before_any_stop(smollm2: Tokenizer) -> None:
    choice = ChoiceText(smollm2, stop=["."], min_tokens=3)
    token_ids = smollm2.encode("a.b.c.")
    assert len(token_ids) == 6

    deltas = []
    for token_id in token_ids:
        deltas.append(choice.push(token_id))
        if choice.matched_stop is not None:
            break

    assert deltas == ["a", ".", "b", ""]


def test_nothing_follows_a_stop(smollm2: Tokenizer) -> None:
    choice = ChoiceText(smollm2, stop=["a"])
    choice.push(smollm2.encode("a")[0])

    with pytest.raises(AssertionError, match="after stop 'a'"):
        choice.push(0)


@settings(max_examples=200, deadline=None)
@given(
    text=st.one_of(st.sampled_from(CORPUS), st.text(max_size=40)),
    stop=st.lists(st.text(min_size=1, max_size=3), max_size=3),
)
def test_deltas_joined_are_the_text_before_the_first_stop(
    smollm2: Tokenizer, text: str, stop: list[str]
) -> None:
    choice = ChoiceText(smollm2, stop)
    token_ids = smollm2.encode(text)
    joined = ""
    for token_id in token_ids:
        joined += choice.push(token_id)
        if choice.matched_stop is not None:
            break
    else:
        joined += choice.finish()

    whole = smollm2.decode(token_ids)
    if choice.matched_stop is None:
        assert joined == whole
        assert not any(s in whole for s in stop)
    else:
        assert whole.startswith(joined + choice.matched_stop)
        assert not any(s in joined for s in stop)
