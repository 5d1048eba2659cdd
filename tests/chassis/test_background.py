"""Tasks that nobody waits for."""

import asyncio

import pytest

from chassis.background import Background


async def test_a_failure_is_logged_and_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    background, go_on = Background(), asyncio.Event()
    done: list[str] = []

    async def fail() -> None:
        raise RuntimeError("broken")

    async def work() -> None:
        await go_on.wait()
        done.append("worked")

    failing, working = background.spawn(fail()), background.spawn(work())
    await asyncio.wait([failing])
    go_on.set()
    await working
    assert done == ["worked"]
    (record,) = caplog.records
    assert "fail" in record.getMessage()
    assert "RuntimeError: broken" in caplog.text


async def test_closing_ends_what_still_runs(caplog: pytest.LogCaptureFixture) -> None:
    background = Background()
    task = background.spawn(asyncio.Event().wait())  # type: ignore[arg-type]
    await background.close()
    await background.close()
    assert task.cancelled()
    assert caplog.records == []
