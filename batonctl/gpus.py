"""The NVIDIA GPUs of this machine, without torch."""

import os
from collections.abc import Mapping
from pathlib import Path

_DRIVER = Path("/proc/driver/nvidia/gpus")


def visible_gpus(env: Mapping[str, str] = os.environ, driver: Path = _DRIVER) -> list[str]:
    """What CUDA_VISIBLE_DEVICES may say for each GPU that this process may use."""
    if (asked := env.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name for name in asked.split(",") if name and name != "-1"]
    count = len(list(driver.iterdir())) if driver.is_dir() else 0
    return [str(index) for index in range(count)]
