"""What a captured step with shared prefixes reads, sent when the prefixes change."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from engine.attention.cascade import Cascade
from engine.attention.cascade_plan import plan_cascade
from engine.attention.prefix_groups import PrefixGroups, SharedPrefix
from engine.gpu.staging import Staging
from engine.kernels.cuda.prefix_shape import prefix_unit
from engine.kv_cache import KvCache
from engine.request import Request

NOTHING = np.empty(0, dtype=np.int32)


class CascadeInputs:
    """``cascade`` is what the steps are captured with. Steps of the same sequences cost the host
    one comparison a sequence, whatever their length."""

    def __init__(
        self,
        kv_cache: KvCache,
        num_heads: int,
        max_sequences: int,
        pays: Callable[[int, int], bool],
    ) -> None:
        """``pays``: as PrefixGroups takes it."""
        self.cascade = Cascade(kv_cache, num_heads, max_sequences)
        self._max_sequences = max_sequences
        self._groups = PrefixGroups(kv_cache.block_size, prefix_unit(kv_cache.block_size), pays)
        self._staging: Staging | None = None
        if kv_cache.tensor.device.type != "meta":
            self._staging = Staging(self.cascade.words)
        # What the device has.
        self._sent: tuple[SharedPrefix, ...] = ()

    def fill(self, requests: Sequence[Request]) -> NDArray[np.int32] | None:
        """Makes the device know what ``requests`` share. None where that is nothing worth while:
        the step is to be computed without. Else what was sent, NOTHING where it has it already."""
        prefixes = self._groups.update(requests)
        if not prefixes:
            return None
        if prefixes is self._sent:
            return NOTHING
        # For all places of the largest step: those that are empty share nothing.
        plan = plan_cascade(prefixes, self._max_sequences, self.cascade.limits)
        assert self._staging is not None
        words = self._staging.next()
        end = self.cascade.pack(plan, words)
        self._staging.send(end)
        self._sent = prefixes
        return words[:end]

    def load(self, words: NDArray[np.int32]) -> None:
        """Sends what another rank has found."""
        if len(words):
            assert self._staging is not None
            self._staging.next()[: len(words)] = words
            self._staging.send(len(words))
