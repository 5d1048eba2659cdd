"""Reads the figures on a service's metrics page."""

import urllib.request
from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.e2e.service_process import ServiceProcess


def read_samples(service: ServiceProcess) -> Iterator[Sample]:
    """Every sample, as they stand now."""
    url = f"http://127.0.0.1:{service.metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=10) as page:
        text = page.read().decode()
    for family in text_string_to_metric_families(text):
        yield from family.samples


def read_counter(service: ServiceProcess, name: str, **labels: str) -> float:
    """The value of a sample with exactly these labels; 0 where it has not been counted yet."""
    for sample in read_samples(service):
        if sample.name == name and sample.labels == labels:
            return float(sample.value)
    return 0.0
