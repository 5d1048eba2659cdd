"""How much of the GPU the KV pool takes."""

import torch

from engine.errors import ConfigurationError

# What is left beside the weights and the pool: activations of the largest step, graphs and the
# workspaces of libraries, which come after the pool is sized.
RESERVE_SHARE = 0.1
MIN_RESERVE_BYTES = 3 << 30


def pool_bytes(device: torch.device, num_processes: int = 1) -> int:
    """Bytes that are free now but for the reserve; of several processes on the device, each takes
    its share of the whole, less its own weights. Raises ConfigurationError where none are left."""
    free, total = torch.cuda.mem_get_info(device)
    if num_processes > 1:
        free = min(free, total // num_processes - torch.cuda.memory_reserved(device))
    reserve = max(int(free * RESERVE_SHARE), MIN_RESERVE_BYTES)
    if free <= reserve:
        raise ConfigurationError(
            f"the weights leave {free} of the GPU's {total} bytes to this one of {num_processes} "
            f"processes, and {reserve} are kept for activations: choose a smaller model, or one "
            f"GPU more"
        )
    return free - reserve
