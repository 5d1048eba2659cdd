"""How much of the GPU the KV pool takes."""

import torch

from engine.errors import ConfigurationError

# What is left beside the weights and the pool: activations of the largest step, graphs and the
# workspaces of libraries, which come after the pool is sized.
RESERVE_SHARE = 0.1
MIN_RESERVE_BYTES = 3 << 30


def pool_bytes(device: torch.device) -> int:
    """Bytes that are free now but for the reserve. Raises ConfigurationError where none are."""
    free, total = torch.cuda.mem_get_info(device)
    reserve = max(int(free * RESERVE_SHARE), MIN_RESERVE_BYTES)
    if free <= reserve:
        raise ConfigurationError(
            f"the weights leave {free} of the GPU's {total} bytes, of which {reserve} are kept for "
            f"activations: choose a smaller model, or one GPU more"
        )
    return free - reserve
