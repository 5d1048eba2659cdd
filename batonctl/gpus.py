"""The NVIDIA GPUs of this machine, without torch."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

_DRIVER = Path("/proc/driver/nvidia/gpus")


def visible_gpus(env: Mapping[str, str] = os.environ, driver: Path = _DRIVER) -> list[str]:
    """What CUDA_VISIBLE_DEVICES may say for each GPU that this process may use."""
    if (asked := env.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name for name in asked.split(",") if name and name != "-1"]
    count = len(list(driver.iterdir())) if driver.is_dir() else 0
    return [str(index) for index in range(count)]


def share_gpus(gpus: Sequence[str], size: int, num_workers: int) -> list[tuple[str, int]]:
    """For each worker, the CUDA_VISIBLE_DEVICES of its ``size`` GPUs, and how many workers use
    those; they take turns. Where there are fewer GPUs each gets all, and will say that they are too
    few."""
    shares = [gpus[first : first + size] for first in range(0, len(gpus) - size + 1, size)]
    shares = shares or [gpus]
    turns = [number % len(shares) for number in range(num_workers)]
    return [(",".join(shares[turn]), turns.count(turn)) for turn in turns]
