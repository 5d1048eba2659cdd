"""What every worker's metrics page shows about its engine."""

from dataclasses import asdict

from chassis.metrics import Metrics
from worker.load import LoadBoard


class EngineMetrics:
    """Steps, block states and request counts. ``observe_step`` is the engine thread's."""

    def __init__(self, metrics: Metrics, board: LoadBoard) -> None:
        self._board = board
        self._steps = metrics.counter("baton_engine_steps_total", "Engine steps computed.")
        self._step_seconds = metrics.histogram(
            "baton_engine_step_seconds", "Duration of an engine step."
        )
        metrics.observed_gauge("baton_blocks", "KV blocks by state.", "state", self._read_blocks)
        running = metrics.gauge("baton_requests_running", "Requests that are computing.")
        running.set_function(lambda: board.load.running)
        waiting = metrics.gauge("baton_requests_waiting", "Requests that wait to be admitted.")
        waiting.set_function(lambda: board.load.waiting)

        handing_off = metrics.gauge("baton_hand_offs", "Requests whose KV is handed off.")
        handing_off.set_function(lambda: board.load.handing_off)

    def observe_step(self, seconds: float) -> None:
        self._steps.inc()
        self._step_seconds.observe(seconds)

    def _read_blocks(self) -> dict[str, float]:
        states = asdict(self._board.load.blocks)
        del states["total"]
        return states
