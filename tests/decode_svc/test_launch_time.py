"""When steps are launched ahead, in a closed loop with a simulated device: no clock is real."""

import statistics

import pytest

from chassis.metrics import Metrics
from decode_svc.launch_time import LONGEST_REST, LaunchTime, StepSize, TimedStep
from engine.batch import DeviceTime
from engine.dummy_part import dummy_part
from engine.step_under_way import PartUnderWay, StepUnderWay
from tests.decode_svc.simulation import Simulation, World

SIZE = StepSize(8, 8000)
PART = PartUnderWay(dummy_part(1, 999, 16).request, 999, 1000, None)
STEP = StepUnderWay((PART,) * 8)


def make_launch_time(*steps: tuple[StepSize, float]) -> LaunchTime:
    """After steps of these sizes that took the device so many seconds."""
    launch_time = LaunchTime(Metrics())
    for size, seconds in steps:
        launch_time.landed(TimedStep(size, 0.0, False), DeviceTime(seconds, 0.0), 0.0)
    return launch_time


def rest(launch_time: LaunchTime, size: StepSize = SIZE) -> float:
    return launch_time.rest(TimedStep(size, 1.0, False), 1.0)


def test_a_prompt_that_arrives_while_a_step_is_computed_joins_the_next() -> None:
    waits = Simulation(World()).run(1000).waits
    assert len(waits) > 300
    assert statistics.median(waits) < 0.7
    assert sorted(waits)[len(waits) * 99 // 100] < 1.5
    # As it is without rests: what this saves.
    assert statistics.median(Simulation(World(), rests=False).run(1000).waits) > 1.3


def test_steps_that_change_leave_the_device_idle_for_one_at_most() -> None:
    world = World()
    simulation = Simulation(world)
    simulation.run(200)
    for seconds in (0.004, 0.020, 0.004, 0.020):
        before, world.step = world.step, seconds
        told = simulation.run(300)
        assert told.rests
        assert told.idle < max(before - seconds, 0.0) + 0.01 * told.seconds
        assert simulation.run(300).idle < 0.01 * told.seconds


def test_steps_that_change_all_the_time_leave_the_device_little_idle() -> None:
    world = World()
    simulation = Simulation(world)
    idle = seconds = 0.0
    for _ in range(200):
        for world.step in (0.020, 0.020, 0.020, 0.020, 0.020, 0.020, 0.020, 0.020, 0.004):
            told = simulation.run(1)
            idle, seconds = idle + told.idle, seconds + told.seconds
    assert idle < 0.03 * seconds


@pytest.mark.parametrize("late", [0.005, 0.050])
def test_a_host_that_wakes_up_late_does_not_keep_the_device_waiting(late: float) -> None:
    world = World(step=0.010)
    simulation = Simulation(world)
    simulation.run(200)
    world.late = late
    simulation.run(100)
    told = simulation.run(1000)
    assert told.idle < 0.05 * told.seconds
    assert simulation.metrics.registry.get_sample_value("baton_device_waits_total")


def test_steps_shorter_than_the_host_s_own_work_are_launched_at_once() -> None:
    world = World(step=0.001, launch=0.002, between_arrivals=0.004, pull=0.010)
    told = Simulation(world).run(1000)
    assert (told.rests, len(told.waits) > 100) == (0, True)


def test_without_prompts_on_their_way_nothing_is_put_off() -> None:
    simulation = Simulation(World(between_arrivals=1e9))
    simulation.run(20)
    told = simulation.run(500)
    assert (told.rests, told.idle) == (0, 0.0)


@pytest.mark.parametrize("put_off", [False, True])
def test_what_the_device_waited_makes_no_rest_longer(put_off: bool) -> None:
    launch_time = make_launch_time((SIZE, 0.010))
    rests = [rest(launch_time)]
    for _ in range(10):
        launch_time.landed(TimedStep(SIZE, 0.0, put_off), DeviceTime(0.010, 0.050), 0.0)
        rests.append(rest(launch_time))
    assert rests == sorted(rests, reverse=True)
    assert (rests[-1] < 0) == put_off


def test_a_device_without_work_after_a_rest_has_not_waited_for_the_host() -> None:
    launch_time = make_launch_time((SIZE, 0.010))
    last = launch_time.launched(STEP, scheduling=1.0, began=1.0, now=1.0)
    before = launch_time.rest(last, 1.0)
    assert before > 0
    launch_time.landed(last, DeviceTime(0.010, 0.0), 1.010)
    after_lull = launch_time.launched(STEP, scheduling=9.0, began=9.0, now=9.0)
    launch_time.landed(after_lull, DeviceTime(0.010, 8.0), 9.010)
    next_one = launch_time.launched(STEP, scheduling=9.010, began=9.010, now=9.010)
    assert launch_time.rest(next_one, 9.010) == pytest.approx(before)


def test_the_least_that_like_steps_took_is_what_one_is_expected_to_take() -> None:
    alone = rest(make_launch_time((SIZE, 0.010)))
    assert rest(make_launch_time((SIZE, 0.020), (SIZE, 0.010), (SIZE, 0.030))) == alone
    assert rest(make_launch_time((SIZE, 0.010), *[(SIZE, 0.020)] * 8)) > alone


@pytest.mark.parametrize("size", [StepSize(4, 8000), StepSize(8, 4000)])
def test_a_smaller_step_is_expected_to_take_less(size: StepSize) -> None:
    launch_time = make_launch_time((SIZE, 0.010))
    assert rest(launch_time, size) < rest(launch_time) - 0.0049
    assert rest(launch_time, StepSize(16, 16000)) == rest(launch_time)


def test_a_step_that_nobody_measured_ends_what_was_known() -> None:
    launch_time = make_launch_time((SIZE, 0.010))
    launch_time.landed(TimedStep(SIZE, 0.0, False), None, 0.0)
    assert rest(launch_time) <= 0


def test_no_rest_is_so_long_that_the_thread_seems_stuck() -> None:
    assert rest(make_launch_time((SIZE, 3600.0))) == LONGEST_REST
