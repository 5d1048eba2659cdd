"""What the doctor says of a stack that is up and not well."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from batonctl.doctor.check import Check, Verdict
from batonctl.doctor.running import check_gateway, check_workers
from tests.e2e.service_process import running_service
from tests.gateway.scripted_workers import (
    OTHER_DTYPE,
    ScriptedDecode,
    ScriptedPrefill,
    ScriptedWorker,
)


@pytest.fixture
async def opened() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def examine(opened: AsyncExitStack, *workers: ScriptedWorker) -> dict[str, Check]:
    """The checks of these workers, by name; a worker's own by its role."""
    for worker in workers:
        await opened.enter_async_context(worker.serving())
    checks = await check_workers([worker.address for worker in workers])
    names = {f"worker {w.address}": w.service.rsplit(".", 1)[-1] for w in workers}
    return {names.get(check.name, check.name): check for check in checks}


async def test_workers_that_fit_are_paired(opened: AsyncExitStack) -> None:
    checks = await examine(opened, ScriptedPrefill(), ScriptedDecode())
    assert {check.verdict for check in checks.values()} == {Verdict.OK}
    assert checks["PrefillService"].detail.startswith("prefill, scripted, checkpoint ")


async def test_workers_of_two_layouts_fail_with_the_settings_that_must_agree(
    opened: AsyncExitStack,
) -> None:
    prefill, decode = ScriptedPrefill(), ScriptedDecode(**OTHER_DTYPE)
    pairing = (await examine(opened, prefill, decode))["pairing"]
    assert pairing.verdict == Verdict.FAILED
    assert pairing.detail == (
        f"workers differ in layout: {prefill.address} has dtype float32, "
        f"{decode.address} has dtype bfloat16"
    )
    assert "--dtype" in pairing.fix


async def test_workers_of_one_role_are_no_stack(opened: AsyncExitStack) -> None:
    pairing = (await examine(opened, ScriptedPrefill(), ScriptedPrefill()))["pairing"]
    assert pairing.verdict == Verdict.WARNING


async def test_a_worker_that_is_not_ready_is_named_with_its_state(opened: AsyncExitStack) -> None:
    worker = ScriptedPrefill()
    await opened.enter_async_context(worker.serving())
    assert worker.server is not None
    worker.server.set_ready(False)
    check, _ = await check_workers([worker.address])
    assert (check.verdict, check.detail.endswith("NOT_SERVING")) == (Verdict.FAILED, True)
    assert "see its log" in check.fix


async def test_a_gateway_without_workers_is_alive_and_not_ready() -> None:
    nobody = ("--prefill-addresses=127.0.0.1:1", "--decode-addresses=127.0.0.1:1")
    with running_service("gateway", *nobody) as gateway:
        gateway.wait_for_log("live on")
        alive, ready, *_ = await check_gateway(gateway.address)
    assert (alive.verdict, ready.verdict) == (Verdict.OK, Verdict.FAILED)
    assert ready.detail == "the gateway is NOT_SERVING"
    assert "a ready prefill and a ready decode worker" in ready.fix
