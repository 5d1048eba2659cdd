"""Where spans go: chosen once per process from the standard OTEL_* environment."""

import importlib.metadata
import os
import threading
import time
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from chassis.telemetry.file_exporter import FileSpanExporter
from chassis.telemetry.span import use_tracer
from chassis.telemetry.trace_files import trace_directory

if TYPE_CHECKING:
    from chassis.telemetry.collector_exporter import CollectorExporter

    Exporter = CollectorExporter | FileSpanExporter

# Short, so that a trace can be read from the files right after the answer.
FLUSH_DELAY_MS = 100.0
ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
# Between two looks at whether the last export is over, or hopeless.
_POLL_SECONDS = 0.02

_provider: TracerProvider | None = None
_exporter: "Exporter | None" = None


def setup(service: str, instance: str = "", **attributes: int) -> None:
    """Starts tracing in this process as ``baton-<service>``; call once, before serving.

    ``attributes`` tell more of the process, each as ``baton.<name>``.
    OTLP over gRPC where OTEL_EXPORTER_OTLP_(TRACES_)ENDPOINT is set, else files under
    BATON_TRACE_DIR. OTEL_SDK_DISABLED, OTEL_TRACES_EXPORTER=none, OTEL_TRACES_SAMPLER(_ARG),
    OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES and OTEL_BSP_* are honoured.
    """
    global _provider, _exporter
    assert _provider is None, "telemetry is already set up"
    _provider = TracerProvider(
        resource=_resource(service, instance, attributes), shutdown_on_exit=False
    )
    _exporter = _make_exporter(service)
    if _exporter is not None:
        _provider.add_span_processor(_processor(_exporter))
    use_tracer(_provider.get_tracer("baton", _version()))


def shutdown(timeout: float = 2.0) -> None:
    """Exports what is queued and stops; gives up after ``timeout`` seconds. Safe to call twice.

    A collector that takes nothing is given up sooner: the services of a stack stop one after
    another, and their waits would add up.
    """
    global _provider, _exporter
    provider, _provider = _provider, None
    exporter, _exporter = _exporter, None
    use_tracer(None)
    if provider is None:
        return
    # The SDK would wait up to 30 s for a collector that does not answer.
    closer = threading.Thread(target=provider.shutdown, name="telemetry-shutdown", daemon=True)
    closer.start()
    give_up = time.monotonic() + timeout
    while closer.is_alive() and time.monotonic() < give_up:
        if exporter is not None and exporter.is_hopeless:
            return
        closer.join(_POLL_SECONDS)


def _resource(service: str, instance: str, more: Mapping[str, int]) -> Resource:
    attributes: dict[str, str | int] = {
        "service.name": f"baton-{service}",
        "service.namespace": "baton",
        "service.version": _version(),
        "service.instance.id": instance or str(uuid.uuid4()),
        **{f"baton.{name}": value for name, value in more.items()},
    }
    given = OTELResourceDetector().detect().attributes or {}
    return Resource.create({**attributes, **given, "process.pid": os.getpid()})


def _make_exporter(service: str) -> "Exporter | None":
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if disabled or os.environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none":
        return None
    if any(os.environ.get(name) for name in ENDPOINT_VARIABLES):
        # Late: a process that writes files need not load the OTLP stubs (0.1 s).
        from chassis.telemetry.collector_exporter import CollectorExporter

        return CollectorExporter()
    return FileSpanExporter(trace_directory(), service)


def _processor(exporter: "Exporter") -> BatchSpanProcessor:
    delay = None if "OTEL_BSP_SCHEDULE_DELAY" in os.environ else FLUSH_DELAY_MS
    return BatchSpanProcessor(exporter, schedule_delay_millis=delay)


def _version() -> str:
    try:
        return importlib.metadata.version("baton-serve")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
