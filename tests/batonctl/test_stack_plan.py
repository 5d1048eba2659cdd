"""Which processes with which flags: checked by the services' own settings."""

import socket
from typing import Any

import pytest

from batonctl.errors import InputError
from batonctl.ports import find_free_ports
from batonctl.service_spec import Role
from batonctl.stack_plan import StackPlan, on_free_ports
from chassis.settings import load_settings
from decode_svc.config import DecodeSettings
from gateway.config import GatewaySettings
from prefill_svc.config import PrefillSettings

SETTINGS: dict[Role, type[Any]] = {
    Role.GATEWAY: GatewaySettings,
    Role.PREFILL: PrefillSettings,
    Role.DECODE: DecodeSettings,
}


def settings_of(plan: StackPlan) -> dict[str, Any]:
    """What each service will understand of its command line."""
    return {
        spec.name: load_settings(SETTINGS[spec.role], spec.role, spec.command[4:], {})
        for spec in plan.services()
    }


def test_services_understand_their_flags() -> None:
    plan = StackPlan(
        model="m",
        prefill_workers=2,
        decode_workers=3,
        dtype="float32",
        quantization="q4",
        decode_tensor_parallel_size=2,
    )
    settings = settings_of(plan)
    assert list(settings) == [
        "gateway",
        *("prefill-0", "prefill-1"),
        *("decode-0", "decode-1", "decode-2"),
    ]
    gateway = settings["gateway"]
    assert gateway.prefill_addresses == ("127.0.0.1:7110", "127.0.0.1:7111")
    assert gateway.decode_addresses == ("127.0.0.1:7120", "127.0.0.1:7121", "127.0.0.1:7122")
    decode = settings["decode-2"]
    assert (decode.server.port, decode.server.metrics_port) == (7122, 8122)
    assert (decode.engine.dtype, decode.engine.quantization) == ("float32", "q4")
    assert (decode.engine.workers_on_host, decode.engine.tensor_parallel_size) == (5, 2)
    assert settings["prefill-1"].engine.tensor_parallel_size == 1
    assert {s.server.host for s in settings.values()} == {"127.0.0.1"}


def test_what_is_not_given_is_left_to_the_services() -> None:
    prefill = settings_of(StackPlan(model="m"))["prefill-0"]
    assert prefill.engine.tensor_parallel_size == 1
    assert prefill.engine.dtype == PrefillSettings().engine.dtype
    assert prefill.engine.quantization == PrefillSettings().engine.quantization


def test_addresses_are_where_the_services_listen() -> None:
    plan = StackPlan(model="m", prefill_workers=2)
    for spec, settings in zip(plan.services(), settings_of(plan).values(), strict=True):
        assert spec.address == settings.server.address


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (StackPlan(model="m", gateway_port=7110), "gateway and prefill-0 would share port 7110"),
        (StackPlan(model="m", prefill_workers=11), "prefill-10 and decode-0 would share port 7120"),
        (StackPlan(model="m", gateway_port=6120), "would share port 7120"),
        (StackPlan(model="m", decode_port=65000), "port 66000 for the metrics of decode-0"),
    ],
    ids=["gateway on prefill", "many prefill", "metrics on decode", "past the last port"],
)
def test_ports_that_cannot_work_are_refused(plan: StackPlan, says: str) -> None:
    with pytest.raises(InputError, match=says):
        plan.check_ports()


def test_a_taken_metrics_port_counts_too() -> None:
    gateway, prefill, decode = find_free_ports(3)
    plan = StackPlan(model="m", gateway_port=gateway, prefill_port=prefill, decode_port=decode)
    plan.check_ports()
    says = f"port {decode + 1000} for the metrics of decode-0"
    with socket.create_server(("127.0.0.1", decode + 1000)), pytest.raises(InputError, match=says):
        plan.check_ports()


def test_a_plan_on_free_ports_fits() -> None:
    on_free_ports("m", drain_grace=1.0).check_ports()


def test_workers_take_turns_on_the_gpus_and_know_how_many_share_one() -> None:
    plan = StackPlan(model="m", prefill_workers=1, decode_workers=2, gpus=("3", "5"))
    specs = plan.services()
    assert [spec.env.get("CUDA_VISIBLE_DEVICES") for spec in specs[1:]] == ["3", "5", "3"]
    shares = {
        name: settings.engine.workers_on_device
        for name, settings in settings_of(plan).items()
        if name != "gateway"
    }
    assert shares == {"prefill-0": 2, "decode-0": 1, "decode-1": 2}


def test_workers_of_each_role_get_as_many_gpus_as_they_have_ranks() -> None:
    plan = StackPlan(model="m", prefill_tensor_parallel_size=2, gpus=("3", "5", "7"))
    devices = [spec.env.get("CUDA_VISIBLE_DEVICES") for spec in plan.services()]
    assert devices[1:] == ["3,5", "7"]
