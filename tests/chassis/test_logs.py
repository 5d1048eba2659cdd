"""The lines that services write."""

import json
import logging
from collections.abc import Iterator

import pytest

from chassis.logs import setup_logging
from chassis.request_id import set_request_id


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    set_request_id("")
    yield
    root.handlers[:], root.level = handlers, level
    set_request_id("")


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err.splitlines()[-1]


def test_a_line_has_time_level_service_and_facts(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("gateway")
    set_request_id("abc")
    logging.getLogger("x.y").info("a b %d", 1, extra={"fields": {"attempt": "e=1", "n": 2}})
    time, rest = last_line(capsys).split(" ", 1)
    assert len(time) == len("2026-01-02T03:04:05.678Z") and time.endswith("Z")
    assert rest == 'INFO gateway msg="a b 1" request=abc attempt="e=1" n=2 logger=x.y'


def test_json_has_the_same_facts(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("decode", form="json")
    logging.getLogger("x").warning("line\nbreak", extra={"fields": {"n": 2}})
    facts = json.loads(last_line(capsys))
    assert facts.pop("time")
    assert facts == {
        "level": "WARNING",
        "service": "decode",
        "msg": "line\nbreak",
        "n": 2,
        "logger": "x",
    }


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_traceback_is_kept(capsys: pytest.CaptureFixture[str], form: str) -> None:
    setup_logging("decode", form=form)
    try:
        raise KeyError("k")
    except KeyError:
        logging.getLogger("x").exception("failed")
    assert "KeyError: 'k'" in capsys.readouterr().err


def test_a_message_stays_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("gateway")
    logging.getLogger("x").info("a\nb")
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_level_holds(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("gateway", level="error")
    logging.getLogger("x").warning("not this")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("wrong", [{"level": "loud"}, {"form": "xml"}], ids=["level", "format"])
def test_unknown_choices_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong.values()))):
        setup_logging("gateway", **wrong)
