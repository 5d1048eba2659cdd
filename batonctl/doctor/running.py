"""A running stack: is it alive, is it what we think, does it answer."""

import grpc

from baton.v1 import gateway_pb2, gateway_pb2_grpc, generation_pb2, worker_pb2, worker_pb2_grpc
from batonctl.doctor.check import Check, failed, ok, skipped, warning
from batonctl.health import check_health
from batonctl.service_failure import command_error
from batonctl.service_spec import Role
from chassis.channel import open_channel
from chassis.durations import to_seconds
from chassis.layout_differences import layout_differences
from chassis.status import from_rpc_error
from modelfiles.short_digest import short_digest

PROBE_SECONDS = 3.0
REQUEST_SECONDS = 60.0
_ROLE_NAMES = {
    worker_pb2.WORKER_ROLE_PREFILL: "prefill",
    worker_pb2.WORKER_ROLE_DECODE: "decode",
}
# Digests of WorkerInfo, and what to do where workers differ in them.
_MUST_BE_EQUAL = {
    "vocabulary": "run the gateway and all workers with the same model files",
    "checkpoint": "run all workers with the same model files",
    "layout": "run all workers with the same --dtype and --block-size",
}


async def check_gateway(address: str) -> list[Check]:
    """Health, models and one tiny request. The first check fails if nothing answers."""
    liveness = await check_health(address, "", PROBE_SECONDS)
    if liveness != "SERVING":
        return [failed("stack", f"{address} is {liveness}", "start it with `baton up`")]
    checks = [ok("stack", f"alive at {address}")]
    readiness = await check_health(address, Role.GATEWAY.health_service, PROBE_SECONDS)
    if readiness == "NOT_FOUND":
        checks.append(failed("readiness", f"{address} is no Baton gateway", "check --address"))
        return checks
    if readiness == "SERVING":
        checks.append(ok("readiness", "the gateway takes requests"))
    else:
        # The request below says why.
        fix = "it needs a ready prefill and a ready decode worker: see the checks of the workers"
        checks.append(failed("readiness", f"the gateway is {readiness}", fix))
    async with open_channel(address) as channel:
        stub = gateway_pb2_grpc.GenerationServiceStub(channel)
        try:
            checks.append(await _check_models(stub))
            checks.append(await _check_request(stub))
        except grpc.aio.AioRpcError as error:
            said = command_error(from_rpc_error(error), address)
            fix = "see the checks of the workers, and the gateway's log"
            checks.append(failed("request", said.message, fix))
    return checks


async def _check_models(stub: "gateway_pb2_grpc.GenerationServiceAsyncStub") -> Check:
    request = gateway_pb2.ListModelsRequest()
    response = await stub.ListModels(request, timeout=PROBE_SECONDS)
    if not response.models:
        return failed("models", "none is served", "see the gateway's log")
    shown = ", ".join(
        f"{m.name} ({m.prefill_workers} prefill, {m.decode_workers} decode)"
        for m in response.models
    )
    if any(not m.prefill_workers or not m.decode_workers for m in response.models):
        return failed("models", shown, "start the missing workers, or see their logs")
    return ok("models", shown)


async def _check_request(stub: "gateway_pb2_grpc.GenerationServiceAsyncStub") -> Check:
    request = generation_pb2.GenerateRequest(
        prompt=generation_pb2.Prompt(text="The capital of France is"),
        sampling=generation_pb2.SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True),
    )
    response = await stub.Generate(request, timeout=REQUEST_SECONDS)
    generated = response.usage.completion_tokens
    if generated != 4:
        return failed("request", f"asked for 4 tokens, got {generated}", "report this as a bug")
    first = to_seconds(response.timings.time_to_first_token)
    total = to_seconds(response.timings.total)
    return ok("request", f"4 tokens in {total:.3f} s, the first after {first:.3f} s")


async def check_workers(addresses: list[str]) -> list[Check]:
    """Identity of each worker, and whether prefill and decode workers can be paired."""
    infos: dict[str, worker_pb2.WorkerInfo] = {}
    checks = []
    for address in addresses:
        try:
            info = await _worker_info(address)
        except grpc.aio.AioRpcError as error:
            said = command_error(from_rpc_error(error), address)
            checks.append(failed(f"worker {address}", said.message, "start it, or see its log"))
            continue
        infos[address] = info
        checks.append(await _check_worker(address, info))
    if infos:
        checks.append(_check_pairing(infos))
    return checks


async def _worker_info(address: str) -> worker_pb2.WorkerInfo:
    async with open_channel(address) as channel:
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        call = stub.Watch(worker_pb2.WatchRequest(), timeout=PROBE_SECONDS)
        async for response in call:
            call.cancel()
            return response.info
    raise AssertionError("a Watch ended without a first message")


async def _check_worker(address: str, info: worker_pb2.WorkerInfo) -> Check:
    name = f"worker {address}"
    role = _ROLE_NAMES.get(info.role, "unknown")
    identity = (
        f"{role}, {info.model}, checkpoint {short_digest(info.checkpoint_digest)}, "
        f"vocabulary {short_digest(info.vocabulary_digest)}, boot id {info.boot_id.hex()[:8]}"
    )
    if role == "unknown":
        return failed(name, identity, "the worker is of another version of Baton")
    readiness = await check_health(address, Role(role).health_service, PROBE_SECONDS)
    if readiness != "SERVING":
        return failed(
            name, f"{identity}, {readiness}", "it warms up, drains or failed: see its log"
        )
    return ok(name, identity)


def _check_pairing(infos: dict[str, worker_pb2.WorkerInfo]) -> Check:
    """``infos`` by the address of the worker."""
    if len({info.role for info in infos.values()}) == 1:
        return warning("pairing", "only one role among the workers", "name the others: --worker")
    for what, fix in _MUST_BE_EQUAL.items():
        digests = {address: getattr(info, f"{what}_digest") for address, info in infos.items()}
        if len(set(digests.values())) > 1:
            shown = ", ".join(f"{at} has {short_digest(digest)}" for at, digest in digests.items())
            if what == "layout":
                shown = layout_differences([(at, info.layout) for at, info in infos.items()])
            return failed("pairing", f"workers differ in {what}: {shown}", fix)
    return ok("pairing", f"{len(infos)} workers share one model and KV layout")


def no_stack(address: str) -> Check:
    """For a machine where none was expected."""
    return skipped("stack", f"none at {address}", "`baton up` starts one")
