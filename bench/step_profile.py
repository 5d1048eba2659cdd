"""Where the time of steps goes, from what torch's profiler saw."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile, record_function

from bench.op_classes import OP_CLASSES, OpClass, classify
from engine.attention.invariant import InvariantAttention
from engine.attention.torch_backend import TorchAttention
from engine.sampler import Sampler

_STEP = "step"
# On a CPU one operator serves several kinds of work, and some work is none of torch's: what these
# do, with all that they call, is the kind of work that their name says.
_RANGES: tuple[tuple[Any, str, OpClass], ...] = (
    (InvariantAttention, "plan", "attention"),
    (InvariantAttention, "run", "attention"),
    (TorchAttention, "plan", "attention"),
    (TorchAttention, "run", "attention"),
    (Sampler, "sample", "sampling"),
)


@dataclass(frozen=True, slots=True)
class StepProfile:
    """Seconds of one step by kind of work, and in which nothing was computed."""

    seconds: dict[OpClass, float]
    idle: float

    @property
    def total(self) -> float:
        return sum(self.seconds.values()) + self.idle


def profile_steps(run: Callable[[], object], num_steps: int, *, on_gpu: bool) -> StepProfile:
    """The mean over the ``num_steps`` steps that ``run`` makes, the device's work awaited."""
    activities = [ProfilerActivity.CPU]
    if on_gpu:
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiler, _ranges(), record_function(_STEP):
        run()
    events = list(profiler.events() or ())
    found = _device_times(events) if on_gpu else _host_times(events)
    seconds = {kind: found.seconds[kind] / num_steps for kind in OP_CLASSES}
    return StepProfile(seconds, found.idle / num_steps)


def _host_times(events: Sequence[Any]) -> StepProfile:
    """Every operator's own time. What the step's range has for itself is Python between them."""
    seconds = dict.fromkeys(OP_CLASSES, 0.0)
    idle = 0.0
    for event in events:
        own = event.self_cpu_time_total / 1e6
        names = list(_lineage(event))
        if event.name == _STEP:
            idle += own
        elif _STEP in names:
            seconds[_host_class(names)] += own
    return StepProfile(seconds, idle)


def _lineage(event: Any) -> Iterator[str]:
    """Its name, its caller's, and so on."""
    while event is not None:
        yield event.name
        event = event.cpu_parent


def _host_class(names: Iterable[str]) -> OpClass:
    first, *callers = names
    ranges = {kind for _, _, kind in _RANGES}
    return next((classify(name) for name in callers if name in ranges), classify(first))


def _device_times(events: Sequence[Any]) -> StepProfile:
    """Kernels by their names; idle is what none of them covers between the first and the last."""
    kernels = sorted(
        (event.time_range.start / 1e6, event.time_range.end / 1e6, event.name)
        for event in events
        if event.device_type == DeviceType.CUDA and event.name != _STEP
    )
    return device_times(kernels)


def device_times(kernels: Sequence[tuple[float, float, str]]) -> StepProfile:
    """Of kernels as (start, end, name) by start, in seconds. Where some overlap, a moment counts
    for the one that began first."""
    seconds = dict.fromkeys(OP_CLASSES, 0.0)
    idle, now = 0.0, kernels[0][0] if kernels else 0.0
    for start, end, name in kernels:
        idle += max(start - now, 0.0)
        seconds[classify(name)] += max(end - max(start, now), 0.0)
        now = max(now, end)
    return StepProfile(seconds, idle)


@contextmanager
def _ranges() -> Iterator[None]:
    """Inside, what ``_RANGES`` names shows in the profile."""
    originals = [getattr(owner, method) for owner, method, _ in _RANGES]
    for (owner, method, kind), original in zip(_RANGES, originals, strict=True):
        setattr(owner, method, _named(original, kind))
    try:
        yield
    finally:
        for (owner, method, _), original in zip(_RANGES, originals, strict=True):
            setattr(owner, method, original)


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with record_function(name):
            return function(*args, **kwargs)

    return call
