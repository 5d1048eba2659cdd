"""Prometheus metrics: a registry for a process, a page for a service.

    metrics = Metrics()
    requests = metrics.counter("baton_requests_total", "Requests answered.", ("code", "reason"))
    with metrics.serve("127.0.0.1", 8100):
        requests.labels("OK", "").inc()

Several processes behind one page (``gateway --workers N``): the parent makes a directory with
``share_metrics`` before it starts the others, they find it in their environment, and the one
that serves the page shows the sums of all.
"""

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    start_http_server,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

from chassis.owned_folder import owned_folder

SHARED_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"

# Seconds from 1 ms to 60 s, each 1.3 to 2 times the one before.
SECONDS_BUCKETS = (
    *(0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0),
)


class Metrics:
    """The metrics of one process. Creating and changing them is thread-safe.

    Names follow Prometheus: base units, ``_total`` for counters; ours start with ``baton_``.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

    def counter(self, name: str, help: str, labels: Sequence[str] = ()) -> Counter:
        """Something that only grows; the name ends in ``_total``."""
        assert name.endswith("_total"), f"counter {name} must end in _total"
        return Counter(name, help, labels, registry=self.registry)

    def gauge(
        self,
        name: str,
        help: str,
        labels: Sequence[str] = (),
        over_processes: Literal["livesum", "livemin"] = "livesum",
    ) -> Gauge:
        """Something that goes up and down; of several processes, their sum or the least."""
        return Gauge(name, help, labels, registry=self.registry, multiprocess_mode=over_processes)

    def histogram(
        self,
        name: str,
        help: str,
        labels: Sequence[str] = (),
        buckets: Sequence[float] = SECONDS_BUCKETS,
    ) -> Histogram:
        """A distribution; the default buckets are for seconds."""
        return Histogram(name, help, labels, registry=self.registry, buckets=buckets)

    def observed_gauge(
        self, name: str, help: str, label: str, read: Callable[[], Mapping[str, float]]
    ) -> None:
        """A gauge whose values, by ``label``, are read when the page is asked for.

        ``read`` runs on the page's thread. Not shown by a page that several processes share.
        """
        self.registry.register(_Observed(GaugeMetricFamily, name, help, label, read))

    def observed_counter(
        self, name: str, help: str, label: str, read: Callable[[], Mapping[str, float]]
    ) -> None:
        """As ``observed_gauge``, for what only grows; the name ends in ``_total``."""
        assert name.endswith("_total"), f"counter {name} must end in _total"
        self.registry.register(_Observed(CounterMetricFamily, name, help, label, read))

    def count_tasks(self, loop: asyncio.AbstractEventLoop) -> None:
        """A gauge of the tasks of ``loop`` that have not ended. Not for a page that is shared."""
        tasks = self.gauge("baton_tasks", "Tasks of the event loop that have not ended.")
        tasks.set_function(lambda: len(asyncio.all_tasks(loop)))

    @contextmanager
    def serve(self, host: str, port: int) -> Iterator[int]:
        """Serves the page while entered; yields the port (``port`` 0 picks one).

        Where processes share a directory the page shows all of them. Raises OSError if the port
        is taken.
        """
        server, thread = start_http_server(port, host, self._page_registry())
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def _page_registry(self) -> CollectorRegistry:
        shared = os.environ.get(SHARED_VARIABLE)
        if not shared:
            ProcessCollector(registry=self.registry)
            return self.registry
        registry = CollectorRegistry()
        MultiProcessCollector(registry, shared)  # type: ignore[no-untyped-call]
        return registry


@contextmanager
def share_metrics() -> Iterator[str]:
    """Makes the directory that the processes started while entered share; removes it at the end,
    and those of parents that were killed.

    To be entered before the first of them starts; prometheus_client reads the environment when
    it is imported, so the parent's own metrics are not part of the sums.
    """
    with owned_folder("baton-metrics-") as folder:
        os.environ[SHARED_VARIABLE] = str(folder)
        try:
            yield str(folder)
        finally:
            del os.environ[SHARED_VARIABLE]


def forget_process(pid: int) -> None:
    """Takes a process that ended out of the gauges of the shared page."""
    mark_process_dead(pid)  # type: ignore[no-untyped-call]


class _Observed(Collector):
    def __init__(
        self,
        family: type[GaugeMetricFamily] | type[CounterMetricFamily],
        name: str,
        help: str,
        label: str,
        read: Callable[[], Mapping[str, float]],
    ) -> None:
        self._make_family = partial(family, name, help, labels=[label])
        self._read = read

    def describe(self) -> list[Metric]:
        return [self._make_family()]

    def collect(self) -> list[Metric]:
        family = self._make_family()
        for value, number in self._read().items():
            family.add_metric([value], number)
        return [family]
