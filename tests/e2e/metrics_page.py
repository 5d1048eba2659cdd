"""Reads one figure off a service's metrics page."""

import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.worker_process import WorkerProcess


def read_counter(worker: WorkerProcess, name: str, **labels: str) -> float:
    """The value of a sample with exactly these labels; 0 where it has not been counted yet."""
    url = f"http://127.0.0.1:{worker.metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=10) as page:
        text = page.read().decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name and sample.labels == labels:
                return float(sample.value)
    return 0.0
