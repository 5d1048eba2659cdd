"""Builds a DecoderModel on a GPU."""

from collections.abc import Callable, Sequence
from contextlib import closing

import torch

from engine.gpu.upload import Upload
from engine.layers.fused import (
    FusedAttention,
    FusedMlp,
    FusedRmsNorm,
    GpuLinear,
    GpuVocabulary,
    RotaryTable,
)
from engine.layers.linear import Linear
from engine.models.decoder import DecoderModel
from engine.models.loader import ModelLoader
from engine.parallel.group import Group
from engine.weights.checkpoint import Checkpoint
from engine.weights.stored_tensor import StoredTensor, dequantize


class GpuModelLoader(ModelLoader):
    """Dense weights only; each goes to the device as soon as it is read."""

    _norm_type = FusedRmsNorm
    _attention_type = FusedAttention
    _mlp_type = FusedMlp
    _vocabulary_type = GpuVocabulary

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        device: torch.device,
        group: Group | None = None,
    ) -> None:
        super().__init__(checkpoint, dtype, "none", group)
        self._device = device
        self._upload: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor
        self._rotary = RotaryTable(checkpoint.config, dtype, device)

    def load(self) -> DecoderModel:
        """Dummy weights are on the device already."""
        if not self._checkpoint.files:
            return super().load()
        with closing(Upload(self._device)) as upload:
            self._upload = upload
            return super().load()

    def _dense_linear(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        row_counts: Sequence[int] = (),
    ) -> Linear:
        """``row_counts`` are of no use here: nothing on a GPU promises equal bits."""
        return GpuLinear(weight, bias)

    def _dense(self, stored: StoredTensor) -> torch.Tensor:
        return self._upload(dequantize(stored, self._dtype))

    def _own(self, stored: StoredTensor) -> torch.Tensor:
        return self._dense(stored)
