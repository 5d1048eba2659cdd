"""The layers on a GPU: what lies between two GEMMs is one kernel of ours."""

import torch
from torch.nn import functional

from engine.attention.base import AttentionBackend
from engine.attention.triton_backend import TritonAttention
from engine.batch import ForwardBatch
from engine.config import ModelConfig
from engine.kernels.cuda.add_rms_norm import add_rms_norm
from engine.kernels.cuda.gemm_table import find_shape
from engine.kernels.cuda.rotary_store import rotary_store
from engine.kernels.cuda.silu_mul import silu_mul
from engine.kernels.cuda.small_gemm import small_gemm
from engine.kv_cache import KvCache
from engine.layers.attention import Attention
from engine.layers.embedding import DenseVocabulary
from engine.layers.linear import DenseLinear
from engine.layers.mlp import SwiGluMlp
from engine.layers.rms_norm import RmsNorm
from engine.layers.rotary import Rotary, RotaryAngles


class FusedRmsNorm(RmsNorm):
    """One pass over what is added and normalised."""

    __slots__ = ()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return add_rms_norm(x, None, self._weight, self._epsilon)

    def add(self, x: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        return add_rms_norm(x, delta, self._weight, self._epsilon)


class RotaryTable(Rotary):
    """The rotations of every position, computed once.

    ``rotations``: (positions, head_dim) float32, cosines then sines.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(config, dtype)
        positions = torch.arange(config.max_position_embeddings).float().unsqueeze(-1)
        angles = positions * self._inverse_frequencies
        rotations = torch.cat((angles.cos(), angles.sin()), dim=-1) * self._magnitude
        self.rotations = rotations.to(device)
        self._all = RotaryAngles(*self.rotations.unsqueeze(1).chunk(2, dim=-1))

    def angles(self, positions: torch.Tensor) -> RotaryAngles:
        """Those of all positions: the kernel picks the step's."""
        return self._all


class FusedAttention(Attention):
    """Head norms, rotation and the store of K and V are one kernel."""

    def __call__(
        self,
        x: torch.Tensor,
        angles: RotaryAngles,
        batch: ForwardBatch,
        kv_cache: KvCache,
        backend: AttentionBackend,
        rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        num_tokens = x.shape[0]
        assert isinstance(self._rotary, RotaryTable) and isinstance(backend, TritonAttention)
        norms = None
        if self._q_norm is not None and self._k_norm is not None:
            norms = (self._q_norm.weight, self._k_norm.weight)
        qkv = self._qkv(x).view(num_tokens, self._num_all, self._head_dim)
        rotary_store(
            qkv,
            self._rotary.rotations,
            batch.positions,
            batch.slot_blocks,
            batch.slot_offsets,
            kv_cache.tensor[:, :, self._layer],
            norms,
            self._norm_epsilon,
        )
        if rows is not None and not len(rows):
            return x[:0]
        return self._project(backend.run_step(self._layer, qkv, self._window), rows)


class GpuLinear(DenseLinear):
    """cuBLAS, or our own kernel where the table says that it is faster."""

    __slots__ = ()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        shape = None if self._bias is not None else find_shape(x, self._weight, silu=False)
        if shape is None:
            return functional.linear(x, self._weight, self._bias)
        return small_gemm(x, self._weight, shape)

    def gated(self, x: torch.Tensor) -> torch.Tensor:
        """``silu(gate) * up`` of a weight that is a gate stacked on an up projection."""
        shape = None if self._bias is not None else find_shape(x, self._weight, silu=True)
        if shape is None:
            return silu_mul(self(x))
        return small_gemm(x, self._weight, shape, silu=True)


class FusedMlp(SwiGluMlp):
    """The activation is one kernel, or part of the GEMM before it."""

    __slots__ = ()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        assert isinstance(self._gate_up, GpuLinear)
        return self._down(self._gate_up.gated(x))


class GpuVocabulary(DenseVocabulary):
    """Logits stay in the dtype of the activations: the sampler reads them as they are."""

    __slots__ = ()

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._head(hidden)
