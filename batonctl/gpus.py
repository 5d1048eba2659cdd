"""The NVIDIA GPUs of this machine, without torch."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

_DRIVER = Path("/proc/driver/nvidia/gpus")


def visible_gpus(env: Mapping[str, str] = os.environ, driver: Path = _DRIVER) -> list[str]:
    """What CUDA_VISIBLE_DEVICES may say for each GPU that this process may use."""
    if (asked := env.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name for name in asked.split(",") if name and name != "-1"]
    count = len(list(driver.iterdir())) if driver.is_dir() else 0
    return [str(index) for index in range(count)]


def share_gpus(gpus: Sequence[str], sizes: Sequence[int]) -> list[tuple[str, int]]:
    """For each worker, the CUDA_VISIBLE_DEVICES of as many GPUs as its size says, and how many
    workers use the one of those that most do; they take turns. Where there are fewer GPUs it gets
    all, and will say that they are too few."""
    shares = []
    first = 0
    for size in sizes:
        if first + size > len(gpus):
            first = 0
        shares.append(gpus[first : first + size])
        first += size
    users = Counter(chain(*shares))
    return [(",".join(share), max(users[gpu] for gpu in share)) for share in shares]
