"""What the gateway counts. Each counter has one owner; worker-side ones are the workers'."""

import math

from chassis.metrics import Metrics
from gateway.generation import Generation


class GatewayMetrics:
    """The gateway's metrics; names of gen_ai_* follow OpenTelemetry's for servers."""

    def __init__(self, metrics: Metrics, model: str) -> None:
        labels = ("gen_ai_request_model",)
        self._requests = metrics.counter(
            "baton_requests_total", "Requests answered, by outcome.", ("code", "reason")
        )
        self._waiting = metrics.gauge(
            "baton_queue_waiting", "Requests that wait, by what for.", ("queue",)
        )
        self._tokens = metrics.gauge(
            "baton_tokens_in_flight", "Tokens of the prompts and answers of admitted requests."
        )
        self._token_limit = metrics.gauge(
            "baton_tokens_in_flight_limit", "Tokens that may be in flight, +Inf without a limit."
        )
        self._held = metrics.gauge(
            "baton_held_bytes", "Bytes of requests, and of answers that clients have not read."
        )
        for queue in ("tokenize", "admission"):
            self._waiting.labels(queue)
        self._ready = metrics.gauge(
            "baton_workers_ready",
            "Workers that can be given requests.",
            ("role",),
            over_processes="livemin",
        )
        self._lost = metrics.counter(
            "baton_workers_lost_total", "Workers that were lost.", ("role", "reason")
        )
        self._retries = metrics.counter(
            "baton_retries_total",
            "Attempts that were tried again, by what they failed of.",
            ("reason",),
        )
        self._in_flight = metrics.gauge("baton_requests_running", "Requests in work.")
        self._first_token = metrics.histogram(
            "gen_ai_server_time_to_first_token_seconds", "Arrival to first token.", labels
        ).labels(model)
        self._per_token = metrics.histogram(
            "gen_ai_server_time_per_output_token_seconds",
            "First to last token, over the tokens after the first; n = 1 only.",
            labels,
        ).labels(model)
        self._duration = metrics.histogram(
            "gen_ai_server_request_duration_seconds", "Arrival to the end.", labels
        ).labels(model)

    def set_admission(self, waiting: int, tokens: int, limit: int | None) -> None:
        """Requests that wait for admission now, tokens of those that have it, and their limit."""
        self._waiting.labels("admission").set(waiting)
        self._tokens.set(tokens)
        self._token_limit.set(math.inf if limit is None else limit)

    def set_tokenizing(self, waiting: int) -> None:
        """Long texts that wait for a thread now."""
        self._waiting.labels("tokenize").set(waiting)

    def set_held(self, num_bytes: int) -> None:
        """Bytes that clients make this process hold now."""
        self._held.set(num_bytes)

    def set_ready(self, prefill: int, decode: int) -> None:
        """Workers that can be given requests now."""
        self._ready.labels("prefill").set(prefill)
        self._ready.labels("decode").set(decode)

    def lost(self, role: str, reason: str) -> None:
        """A worker that was there is there no more."""
        self._lost.labels(role, reason).inc()

    def retried(self, reason: str) -> None:
        """An attempt failed so, and another one follows."""
        self._retries.labels(reason).inc()

    def began(self) -> None:
        """A request arrived."""
        self._in_flight.inc()

    def ended(self, code: str, reason: str, seconds: float) -> None:
        """A request ended, ``seconds`` after it arrived; ``reason`` is "" for OK."""
        self._in_flight.dec()
        self._requests.labels(code, reason).inc()
        self._duration.observe(seconds)

    def refused(self, code: str, reason: str) -> None:
        """A request was turned away unread."""
        self._requests.labels(code, reason).inc()

    def generated(self, generation: Generation, arrived_at: float) -> None:
        """Observes the token times of a request that produced something."""
        first, last = generation.first_token_at, generation.last_token_at
        if first is None or last is None:
            return
        self._first_token.observe(first - arrived_at)
        num_later = generation.num_tokens - 1
        if len(generation.choices) == 1 and num_later > 0:
            self._per_token.observe((last - first) / num_later)
