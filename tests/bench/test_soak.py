"""A soak notices what it is there for."""

import random

import pytest

from batonctl.service_spec import Role
from bench.soak.fault_kind import KILLS, FaultKind
from bench.soak.faults import schedule
from bench.soak.load import Received
from bench.soak.questions import Choice, Question
from bench.soak.report import Bars
from bench.soak.tally import Tally

QUESTION = Question([1], {}, [Choice((7, 8), "ab"), Choice((9,), "c")])


def received(*choices: tuple[list[int], str]) -> Received:
    """What has come, choice by choice."""
    got = Received()
    for index, (token_ids, text) in enumerate(choices):
        got.token_ids[index] += token_ids
        got.texts[index] += text
    return got


def good_tally() -> Tally:
    faults = {(Role.DECODE, FaultKind.KILL): 6, (Role.GATEWAY, FaultKind.MOVE): 4}
    tally = Tally(sent=100, answered=95)
    tally.faults.update(faults)
    return tally


def test_only_the_whole_answer_is_right() -> None:
    assert received(([7, 8], "ab"), ([9], "c")).is_all(QUESTION)
    for wrong in (
        received(([7, 8], "ab")),
        received(([7], "a"), ([9], "c")),
        received(([7, 6], "ab"), ([9], "c")),
        received(([7, 8], "ax"), ([9], "c")),
        received(([7, 8, 8], "ab"), ([9], "c")),
    ):
        assert not wrong.is_all(QUESTION), wrong


def test_of_an_answer_that_broke_off_the_beginning_must_be_right() -> None:
    assert Received().is_beginning(QUESTION)
    assert received(([7], "a")).is_beginning(QUESTION)
    for wrong in (received(([8], "")), received(([7], "b")), received(([7, 8, 8], "ab"))):
        assert not wrong.is_beginning(QUESTION), wrong


def test_a_seed_gives_the_same_faults_and_as_many_kills_as_asked_for() -> None:
    due = schedule(random.Random(3), 100)
    assert due == schedule(random.Random(3), 100)
    assert due != schedule(random.Random(4), 100)
    for kind in FaultKind:
        assert all(any(fault.kind is kind for fault in due[role]) for role in Role)
    assert sum(fault.kind in KILLS for faults in due.values() for fault in faults) == 100


def test_what_reaches_every_bar_misses_none() -> None:
    assert Bars(answers=95, kills=10).missed_by(good_tally()) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"wrong": ["request 1"]}, "1 wrong answers"),
        ({"leaked": 2}, "2 leaked blocks"),
        ({"answered": 94}, "only 94.0% answered"),
        ({"answered": 94}, "only 94 answers"),
        ({"faults": {}}, "only 0 kills"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_bar_can_be_missed(change: dict[str, object], said: str) -> None:
    tally = good_tally()
    for name, value in change.items():
        setattr(tally, name, type(getattr(tally, name))(value))
    assert said in Bars(answers=95, kills=10).missed_by(tally)
