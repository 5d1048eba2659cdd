"""Models of one name are told apart by what is in their files (protocol 1.4)."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from baton.client import BatonClient
from baton.v1 import generation_pb2
from batonctl.doctor.check import Verdict
from batonctl.doctor.running import check_gateway, check_workers
from bench.tiny_model import END_ID
from chassis.errors import ServiceError, Unavailable
from tests.e2e.gateway_process import running_gateway
from tests.e2e.metrics_page import read_counter
from tests.e2e.service_process import running_service
from tests.e2e.tiny_model import write_tiny_model
from tests.e2e.worker_process import WorkerProcess, running

POOL = ("--kv-memory-bytes", str(8 << 20))


@dataclass(frozen=True, slots=True)
class Workers:
    """All serve a model called "tiny". ``prefill`` and ``equal`` have equal files in different
    folders, ``retrained`` other weights, ``respelled`` another tokenizer."""

    model: str
    prefill: WorkerProcess
    equal: WorkerProcess
    retrained: WorkerProcess
    respelled: WorkerProcess


@pytest.fixture(scope="module")
def tiny(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    root = tmp_path_factory.mktemp("models")
    folders = {
        "prefill": write_tiny_model(root / "prefill" / "tiny"),
        "equal": write_tiny_model(root / "equal" / "tiny"),
        "retrained": write_tiny_model(root / "retrained" / "tiny", seed=1),
        "respelled": write_tiny_model(root / "respelled" / "tiny", end="<end>"),
    }
    with ExitStack() as stack:
        workers = {}
        for name, folder in folders.items():
            role = "prefill" if name == "prefill" else "decode"
            worker = running(role, *POOL, model=folder, trace_directory=traces)
            workers[name] = stack.enter_context(worker).wait_ready()
        yield Workers(folders["prefill"], **workers)


async def test_only_the_worker_with_equal_files_is_used(tiny: Workers, traces: Path) -> None:
    decode = [tiny.retrained, tiny.respelled, tiny.equal]
    model = ("--model", tiny.model)
    with running_gateway([tiny.prefill], decode, traces, *model) as gateway:
        gateway.wait_for_log(f"worker {tiny.retrained.address} at")
        (refusal,) = gateway.wait_for_log("vocabularies differ: 'tiny' has")
        assert tiny.respelled.address in refusal
        async with BatonClient(gateway.address) as client:
            answers = [
                await client.generate("abc", max_tokens=9, seed=1, ignore_eos=True)
                for _ in range(6)
            ]
    assert len({answer.choices[0].text for answer in answers}) == 1
    tokens = {w.address: read_counter(w, "baton_generated_tokens_total") for w in decode}
    assert tokens == {
        tiny.equal.address: 6 * 8,
        tiny.retrained.address: 0,
        tiny.respelled.address: 0,
    }


async def test_the_gateway_says_what_ends_a_text(tiny: Workers, traces: Path) -> None:
    model = ("--model", tiny.model)
    with running_gateway([tiny.prefill], [tiny.equal], traces, *model) as gateway:
        async with BatonClient(gateway.address) as client:
            for num_tokens in (1, 2):
                answer = await client.generate(
                    "abc", logit_bias={END_ID: 100.0}, min_tokens=num_tokens, max_tokens=9
                )
                finish = answer.choices[0].finish
                assert finish.reason == generation_pb2.FINISH_REASON_EOS
                assert finish.stop_token_id == END_ID
                assert answer.usage.completion_tokens == num_tokens


async def test_where_nobody_fits_client_and_doctor_hear_why(tiny: Workers, traces: Path) -> None:
    addresses = (
        *("--model", tiny.model),
        *("--prefill-addresses", tiny.prefill.address),
        *("--decode-addresses", f"{tiny.retrained.address},{tiny.respelled.address}"),
    )
    with running_service("gateway", *addresses, BATON_TRACE_DIR=str(traces)) as gateway:
        gateway.wait_for_log("live on")
        error = await refusal_of(gateway.address, "NO_COMPATIBLE_WORKERS")
        assert f"{tiny.prefill.address} has " in error.message
        assert f"{tiny.retrained.address} has " in error.message
        assert "checkpoint" in error.message
        checks = {check.name: check for check in await check_gateway(gateway.address)}
        assert checks["readiness"].verdict == checks["request"].verdict == Verdict.FAILED
        assert error.message in checks["request"].detail


async def refusal_of(address: str, reason: str) -> ServiceError:
    """What a request is told once the gateway knows its workers."""
    async with asyncio.timeout(30), BatonClient(address) as client:
        while True:
            try:
                # Answered by a decode worker alone while the prefill worker is not there yet.
                await client.generate("abc", max_tokens=2)
            except Unavailable as error:
                if error.reason == reason:
                    return error


@pytest.mark.parametrize(
    ("other", "verdict", "said"),
    [
        ("equal", Verdict.OK, "share one model"),
        ("retrained", Verdict.FAILED, "differ in checkpoint"),
        ("respelled", Verdict.FAILED, "differ in vocabulary"),
    ],
)
async def test_the_doctor_says_whether_workers_have_one_model(
    tiny: Workers, other: str, verdict: Verdict, said: str
) -> None:
    workers = [tiny.prefill.address, getattr(tiny, other).address]
    *identities, pairing = await check_workers(workers)
    assert (pairing.verdict, said in pairing.detail) == (verdict, True)
    assert all(check.verdict == Verdict.OK for check in identities)
    assert all(worker in pairing.detail for worker in workers) or verdict == Verdict.OK
