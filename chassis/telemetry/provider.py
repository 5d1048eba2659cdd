"""Where spans go: chosen once per process from the standard OTEL_* environment."""

import importlib.metadata
import os
import threading
import uuid

from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from chassis.telemetry.file_exporter import FileSpanExporter
from chassis.telemetry.span import use_tracer
from chassis.telemetry.trace_files import trace_directory

# Short, so that a trace can be read from the files right after the answer.
FLUSH_DELAY_MS = 100.0
ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")

_provider: TracerProvider | None = None


def setup(service: str, instance: str = "") -> None:
    """Starts tracing in this process as ``baton-<service>``; call once, before serving.

    OTLP over gRPC where OTEL_EXPORTER_OTLP_(TRACES_)ENDPOINT is set, else files under
    BATON_TRACE_DIR. OTEL_SDK_DISABLED, OTEL_TRACES_EXPORTER=none, OTEL_TRACES_SAMPLER(_ARG),
    OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES and OTEL_BSP_* are honoured.
    """
    global _provider
    assert _provider is None, "telemetry is already set up"
    _provider = TracerProvider(resource=_resource(service, instance), shutdown_on_exit=False)
    exporter = _exporter(service)
    if exporter is not None:
        _provider.add_span_processor(_processor(exporter))
    use_tracer(_provider.get_tracer("baton", _version()))


def shutdown(timeout: float = 2.0) -> None:
    """Exports what is queued and stops; gives up after ``timeout`` seconds. Safe to call twice."""
    global _provider
    provider, _provider = _provider, None
    use_tracer(None)
    if provider is None:
        return
    # The SDK would wait up to 30 s for a collector that does not answer.
    closer = threading.Thread(target=provider.shutdown, name="telemetry-shutdown", daemon=True)
    closer.start()
    closer.join(timeout)


def _resource(service: str, instance: str) -> Resource:
    attributes: dict[str, str] = {
        "service.name": f"baton-{service}",
        "service.namespace": "baton",
        "service.version": _version(),
        "service.instance.id": instance or str(uuid.uuid4()),
    }
    given = OTELResourceDetector().detect().attributes or {}
    return Resource.create({**attributes, **given, "process.pid": os.getpid()})


def _exporter(service: str) -> SpanExporter | None:
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if disabled or os.environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none":
        return None
    if any(os.environ.get(name) for name in ENDPOINT_VARIABLES):
        # Late: a process that writes files need not load the OTLP stubs (0.1 s).
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        return OTLPSpanExporter()
    return FileSpanExporter(trace_directory(), service)


def _processor(exporter: SpanExporter) -> BatchSpanProcessor:
    delay = None if "OTEL_BSP_SCHEDULE_DELAY" in os.environ else FLUSH_DELAY_MS
    return BatchSpanProcessor(exporter, schedule_delay_millis=delay)


def _version() -> str:
    try:
        return importlib.metadata.version("baton-serve")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
