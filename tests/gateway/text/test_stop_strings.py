"""Stop strings end a text at the same place however it is cut into pieces."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.stop_strings import StopStrings


def _run(stops: list[str], pieces: list[str]) -> tuple[list[str], str | None]:
    """The certain text after each piece, and the match."""
    matcher = StopStrings(stops)
    certain = []
    for piece in pieces:
        text, match = matcher.push(piece)
        certain.append(text)
        if match is not None:
            return certain, match
    return [*certain, matcher.finish()], None


@pytest.mark.parametrize(
    ("stops", "pieces", "certain", "match"),
    [
        pytest.param(["stop"], ["a stop b"], ["a "], "stop", id="within a piece"),
        pytest.param(["stop"], ["a s", "to", "p b"], ["a ", "", ""], "stop", id="over borders"),
        pytest.param(["stop"], ["a st", "ep"], ["a ", "step", ""], None, id="false hope"),
        pytest.param(["stop"], ["a sto"], ["a ", "sto"], None, id="hope at the end"),
        pytest.param(["aab"], ["aa", "ab"], ["", "a"], "aab", id="hope that moves on"),
        pytest.param(["abcd", "bc"], ["ab", "cd"], ["", "a"], "bc", id="first to end wins"),
        pytest.param(["c", "abc"], ["ab", "c"], ["", ""], "abc", id="longest of those that end"),
        pytest.param(["x", "xy"], ["xy"], [""], "x", id="no waiting for a longer one"),
        pytest.param(["\n\n"], ["a\n", "b\n", "\nc"], ["a", "\nb", ""], "\n\n", id="newlines"),
        pytest.param(["\u4f60\u597d"], ["\u4f60", "\u597d"], ["", ""], "\u4f60\u597d", id="cjk"),
        pytest.param([], ["ab", "c"], ["ab", "c", ""], None, id="no stops"),
    ],
)
def test_what_is_certain_after_each_piece(
    stops: list[str], pieces: list[str], certain: list[str], match: str | None
) -> None:
    assert _run(stops, pieces) == (certain, match)


def _expected(stops: list[str], text: str) -> tuple[str, str | None]:
    """By looking at every end in turn."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


@settings(max_examples=500)
@given(
    stops=st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=4),
    pieces=st.lists(st.text("abc\n", max_size=5), max_size=10),
)
def test_the_result_does_not_depend_on_the_pieces(stops: list[str], pieces: list[str]) -> None:
    certain, match = _run(stops, pieces)

    assert ("".join(certain), match) == _expected(stops, "".join(pieces))


@settings(max_examples=300)
@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4),
    pieces=st.lists(st.text("abc", max_size=4), max_size=10),
)
def test_no_more_is_held_back_than_could_still_match(stops: list[str], pieces: list[str]) -> None:
    matcher = StopStrings(stops)
    given_text = certain = ""
    for piece in pieces:
        text, match = matcher.push(piece)
        if match is not None:
            return
        given_text += piece
        certain += text
        held = given_text.removeprefix(certain)
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


def test_a_match_that_ends_too_early_is_ordinary_text() -> None:
    matcher = StopStrings(["end"])

    assert matcher.push("an end", may_stop=False) == ("an end", None)
    assert matcher.push(", the en", may_stop=False) == (", the ", None)
    # It began too early, but it ends in time.
    assert matcher.push("d.") == ("", "end")


def test_a_match_within_what_was_held_back_too_early_stays_ordinary_text() -> None:
    matcher = StopStrings(["b", "abc"])

    assert matcher.push("ab", may_stop=False) == ("", None)
    assert matcher.push("x") == ("abx", None)
