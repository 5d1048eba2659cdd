"""Health and reflection of every service, as any gRPC client finds them."""

from collections.abc import Iterator

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.e2e.service_process import ServiceProcess
from tests.e2e.worker_process import WorkerProcess

SERVICES = {
    "gateway": ("GenerationService",),
    "prefill": ("PrefillService", "KvTransferService", "WorkerService"),
    "decode": ("DecodeService", "WorkerService"),
}
EVERYWHERE = {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}


@pytest.fixture(params=sorted(SERVICES))
def role(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def channel(
    role: str,
    gateway_process: ServiceProcess,
    workers: tuple[WorkerProcess, WorkerProcess],
) -> Iterator[grpc.Channel]:
    """Without any of the project's options."""
    addresses = {"gateway": gateway_process, "prefill": workers[0], "decode": workers[1]}
    with grpc.insecure_channel(addresses[role].address) as channel:
        yield channel


def full_names(role: str) -> list[str]:
    return [f"baton.v1.{name}" for name in SERVICES[role]]


def test_it_is_live_and_each_of_its_services_is_ready(channel: grpc.Channel, role: str) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    for name in ("", *full_names(role)):
        answer = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=10)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING, name


def test_a_service_that_is_not_there_is_not_found(channel: grpc.Channel) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    with pytest.raises(grpc.RpcError) as caught:
        health.Check(health_pb2.HealthCheckRequest(service="baton.v1.Nothing"), timeout=10)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


def test_reflection_lists_its_services(channel: grpc.Channel, role: str) -> None:
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    answer = ask_reflection(channel, request).list_services_response
    assert {service.name for service in answer.service} == {*full_names(role), *EVERYWHERE}


def test_reflection_describes_every_method(channel: grpc.Channel, role: str) -> None:
    for name in full_names(role):
        request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=name)
        (encoded, *_) = ask_reflection(
            channel, request
        ).file_descriptor_response.file_descriptor_proto
        described = FileDescriptorProto.FromString(encoded)
        services = {f"{described.package}.{each.name}": each for each in described.service}
        assert services[name].method


def ask_reflection(
    channel: grpc.Channel, request: reflection_pb2.ServerReflectionRequest
) -> reflection_pb2.ServerReflectionResponse:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    (answer,) = stub.ServerReflectionInfo(iter([request]), timeout=10)
    return answer
