"""Tasks that must not end by a bug."""

import asyncio

import pytest

from gateway.backoff import keep_trying


async def test_what_fails_is_logged_and_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    failures: list[BaseException] = [ZeroDivisionError(), asyncio.CancelledError()]

    async def work() -> None:
        if failures:
            raise failures.pop()

    await asyncio.wait_for(keep_trying("the work", work), 10)
    assert not failures
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["the work was cancelled from within", "the work failed"]


async def test_a_cancel_from_outside_ends_it() -> None:
    began = asyncio.Event()

    async def work() -> None:
        began.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(keep_trying("the work", work))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
