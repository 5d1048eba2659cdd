"""Service errors in the words of the command line."""

import pytest

from batonctl.errors import CommandError, InputError, UnreachableError
from batonctl.service_failure import command_error
from chassis import errors

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type)]
SERVICE_ERRORS = [k for k in KINDS if issubclass(k, errors.ServiceError)][1:]


@pytest.mark.parametrize("kind", SERVICE_ERRORS)
def test_every_error_has_a_line_and_says_what_to_do(kind: type[errors.ServiceError]) -> None:
    violation = errors.Violation("sampling.top_p", "too large")
    error = command_error(kind("it broke", reason="SOME_REASON", violations=[violation]), "a:1")
    assert error.lines()[0] == "baton: it broke (SOME_REASON)"
    assert len(error.lines()) == 2
    assert type(error) in (CommandError, InputError, UnreachableError)


def test_nobody_there_is_told_apart_from_a_service_that_says_unavailable() -> None:
    nobody = errors.Unavailable("connection refused", reason="UNAVAILABLE")
    assert command_error(nobody, "a:1").message == "nothing answers at a:1"
    lacking = errors.Unavailable("no decode worker", reason="NO_DECODE_WORKER")
    assert "no decode worker" in command_error(lacking, "a:1").message


def test_a_full_queue_says_when_to_come_back() -> None:
    full = errors.ResourceExhausted("queue full", reason="QUEUE_FULL", retry_after=1.25)
    error = command_error(full, "a:1")
    assert error.exit_code == 3
    assert error.hint == "try again in 1.2 s"


def test_one_wrong_field_is_not_said_twice() -> None:
    violation = errors.Violation("model", "no model 'x'")
    wrong = errors.InvalidArgument("model: no model 'x'", reason="R", violations=[violation])
    assert command_error(wrong).lines() == ["baton: model: no model 'x' (R)"]
    other = errors.Violation("sampling.n", "0 is not in [1, 16]")
    both = errors.InvalidArgument("two", reason="R", violations=[violation, other])
    assert command_error(both).hint == "model: no model 'x'; sampling.n: 0 is not in [1, 16]"
