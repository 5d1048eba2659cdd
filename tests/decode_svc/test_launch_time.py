"""When the next step is launched, told by numbers alone."""

import pytest

from decode_svc.launch_time import MARGIN_SECONDS, LaunchTime


def make_launch_time(step: float, host: float) -> LaunchTime:
    launch_time = LaunchTime()
    launch_time.note_step(step)
    launch_time.note_launch(host)
    return launch_time


def test_a_step_is_launched_in_time_for_the_device_to_find_it() -> None:
    launch_time = make_launch_time(0.010, 0.001)
    assert launch_time.rest(0.0) == pytest.approx(0.008 - MARGIN_SECONDS)
    assert launch_time.rest(0.005) == pytest.approx(0.003 - MARGIN_SECONDS)
    assert launch_time.rest(0.009) < 0


def test_short_steps_and_those_of_unknown_length_are_launched_at_once() -> None:
    assert LaunchTime().rest(0.0) <= 0
    assert make_launch_time(0.002, 0.001).rest(0.0) <= 0
