"""Order, text and end of one choice."""

import itertools

import pytest

from baton.v1 import generation_pb2
from gateway.choice import Choice
from gateway.choice_text import ChoiceText
from gateway.tokenizer import Tokenizer
from tests.gateway.scripted_workers import EOS, LENGTH


@pytest.fixture
def words(tokenizer: Tokenizer) -> list[int]:
    """Tokens of a text with a character of several tokens."""
    return tokenizer.encode("one two 🦜 three", add_special_tokens=False)


def make_choice(tokenizer: Tokenizer, stop: tuple[str, ...] = (), min_tokens: int = 0) -> Choice:
    return Choice(0, ChoiceText(tokenizer, stop, min_tokens), tokenizer.token_text)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))), ids=str)
def test_tokens_are_committed_in_index_order(tokenizer: Tokenizer, order: tuple[int, ...]) -> None:
    choice = make_choice(tokenizer)
    committed = [choice.receive(i, 100 + i, None, None) for i in order]
    assert sum(committed) == 4
    assert choice.token_ids == [100, 101, 102, 103]
    assert list(choice.take_delta().token_ids) == [100, 101, 102, 103]


def test_a_token_is_committed_once(tokenizer: Tokenizer) -> None:
    choice = make_choice(tokenizer)
    assert [choice.receive(0, token_id, None, None) for token_id in (100, 200)] == [1, 0]
    assert choice.token_ids == [100]


def test_nothing_is_committed_after_the_end(tokenizer: Tokenizer) -> None:
    choice = make_choice(tokenizer)
    choice.receive(1, 101, None, None)
    choice.receive(0, 100, None, LENGTH)
    assert choice.receive(1, 101, None, None) == 0
    assert choice.token_ids == [100]


def test_nothing_is_kept_after_the_end(tokenizer: Tokenizer) -> None:
    choice = make_choice(tokenizer)
    choice.receive(2, 102, None, None)
    choice.receive(0, 100, None, LENGTH)
    for index in range(1, 100):
        choice.receive(index, 100, None, None)
    assert not choice._early


def test_early_tokens_of_a_failed_attempt_are_forgotten(tokenizer: Tokenizer) -> None:
    choice = make_choice(tokenizer)
    choice.receive(1, 999, None, None)
    choice.forget_early()
    assert choice.receive(0, 100, None, None) == 1
    assert choice.token_ids == [100]


def test_the_deltas_joined_are_the_whole_text(tokenizer: Tokenizer, words: list[int]) -> None:
    choice = make_choice(tokenizer)
    deltas = []
    for index, token_id in enumerate(words):
        choice.receive(index, token_id, None, LENGTH if token_id == words[-1] else None)
        deltas.append(choice.take_delta())
    assert "".join(delta.text for delta in deltas) == "one two 🦜 three"
    assert [list(delta.token_ids) for delta in deltas] == [[token_id] for token_id in words]
    assert all("\ufffd" not in delta.text for delta in deltas)
    assert deltas[-1].finish == LENGTH


def test_the_token_that_ends_a_text_is_counted_and_not_shown(tokenizer: Tokenizer) -> None:
    choice = make_choice(tokenizer)
    choice.receive(0, 2, None, EOS)
    delta = choice.take_delta()
    assert (delta.text, list(delta.token_ids), delta.finish) == ("", [2], EOS)


def test_a_stop_string_wins_over_the_length(tokenizer: Tokenizer, words: list[int]) -> None:
    choice = make_choice(tokenizer, ("two",))
    choice.receive(0, words[0], None, None)
    choice.receive(1, words[1], None, LENGTH)
    assert choice.was_stopped_here
    assert choice.finish == generation_pb2.FinishInfo(
        reason=generation_pb2.FINISH_REASON_STOP_STRING, stop="two"
    )
    assert choice.take_delta().text == "one "


def test_alternatives_are_named_where_they_are_text(tokenizer: Tokenizer, words: list[int]) -> None:
    half = next(token_id for token_id in words if "\ufffd" in tokenizer.token_text(token_id))
    logprobs = generation_pb2.TokenLogprobs(
        chosen=generation_pb2.Logprob(token_id=words[1], logprob=-1.0),
        top=[generation_pb2.Logprob(token_id=half, logprob=-2.0)],
    )
    choice = make_choice(tokenizer)
    choice.receive(0, words[1], logprobs, None)
    (named,) = choice.take_delta().logprobs
    assert (named.chosen.text, named.top[0].text) == (" two", "")
