"""The real loop of the benchmark of hand-offs, over a device that only sleeps."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from bench.joins.__main__ import NUM_BLOCKS, figures_of
from bench.joins.decode_engine import draw_hand_offs, measure
from bench.joins.sleeping_device import SleepingDevice
from engine.batch import ModelRunnerOutput, SchedulerOutput
from engine.errors import DeviceLost

PULL, SECONDS = 0.05, 0.4


class SlowerByItsWord(SleepingDevice):
    """Says that steps take it twice as long as they do: late launches come too late."""

    def launch(self, output: SchedulerOutput) -> Callable[[], ModelRunnerOutput]:
        land = super().launch(output)

        def landed() -> ModelRunnerOutput:
            result = land()
            assert result.device_time is not None
            computing = 2.0 * result.device_time.computing
            return replace(result, device_time=replace(result.device_time, computing=computing))

        return landed


class Lost(SleepingDevice):
    def launch(self, output: SchedulerOutput) -> Callable[[], ModelRunnerOutput]:
        raise DeviceLost("an illegal memory access")


def test_every_hand_off_is_measured_both_ways_and_only_late_launches_are_put_off() -> None:
    device = SleepingDevice(step_seconds=0.02)
    at_once = measure(device, NUM_BLOCKS, PULL, SECONDS, late=False)
    late = measure(device, NUM_BLOCKS, PULL, SECONDS, late=True)
    num_hand_offs = len(draw_hand_offs(PULL, SECONDS))
    assert num_hand_offs
    assert len(at_once.waits) == len(late.waits) == num_hand_offs
    assert min(*at_once.waits, *late.waits) > 0
    assert (at_once.num_put_off, at_once.num_device_waits) == (0, 0)
    assert late.num_put_off > 0
    figures = {each.name: each for each in figures_of("pull50", late, at_once)}
    p50 = figures["joins.pull50.steps.p50"]
    assert (p50.value, p50.rival) == (
        round(late.percentile(50), 4),
        round(at_once.percentile(50), 4),
    )


def test_steps_that_a_device_had_to_wait_for_are_counted() -> None:
    device = SlowerByItsWord(step_seconds=0.02)
    assert measure(device, NUM_BLOCKS, PULL, SECONDS, late=True).num_device_waits > 0


def test_steady_decode_has_no_waits_of_hand_offs() -> None:
    device = SleepingDevice(step_seconds=0.002)
    steady = measure(device, NUM_BLOCKS, None, 0.1, late=True)
    assert steady.num_steps > 0
    names = [each.name for each in figures_of("steady", steady, steady)]
    assert names[0] == "joins.steady.step.ms"


def test_a_lost_device_ends_the_measurement() -> None:
    with pytest.raises(DeviceLost, match="illegal"):
        measure(Lost(), NUM_BLOCKS, PULL, SECONDS, late=True)
