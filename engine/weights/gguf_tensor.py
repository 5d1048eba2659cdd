"""Tensors as GGUF files store them.

Block sizes, and the rare dequantisations, come from the ``gguf`` library.
"""

import gguf
import torch

from engine.errors import CheckpointError
from engine.weights.stored_tensor import GROUP_SIZE, Q4Tensor, Q8Tensor, StoredTensor
from modelfiles.tensor_file import TensorEntry


def gguf_tensor(raw: torch.Tensor, entry: TensorEntry) -> StoredTensor:
    """The tensor behind the bytes ``raw`` ((num_bytes,) uint8), sharing them where it can.

    Raises CheckpointError, naming the tensor, for a type that nobody can read.
    """
    return _DECODERS.get(entry.kind, _decode_by_library)(raw, entry)


def _decode_q4_0(raw: torch.Tensor, entry: TensorEntry) -> StoredTensor:
    blocks = raw.view(entry.shape[0], -1, 18)
    scales = blocks[..., :2].contiguous().view(torch.float16).squeeze(-1)
    return Q4Tensor(blocks[..., 2:], scales, scales * -8)


def _decode_q4_1(raw: torch.Tensor, entry: TensorEntry) -> StoredTensor:
    blocks = raw.view(entry.shape[0], -1, 20)
    scales, minimums = blocks[..., :4].contiguous().view(torch.float16).unbind(-1)
    return Q4Tensor(blocks[..., 4:], scales, minimums)


def _decode_q8_0(raw: torch.Tensor, entry: TensorEntry) -> StoredTensor:
    blocks = raw.view(entry.shape[0], -1, 2 + GROUP_SIZE)
    scales = blocks[..., :2].contiguous().view(torch.float16).squeeze(-1)
    return Q8Tensor(blocks[..., 2:].view(torch.int8), scales)


def _decode_by_library(raw: torch.Tensor, entry: TensorEntry) -> StoredTensor:
    """Rarer block formats become float32; q4 then quantises them anew."""
    if entry.kind in _PLAIN:
        return raw.view(_PLAIN[entry.kind]).view(entry.shape)
    kind = gguf.GGMLQuantizationType[entry.kind]
    try:
        values = gguf.dequantize(raw.view(entry.shape[0], -1).numpy(), kind)
    except NotImplementedError as error:
        raise CheckpointError(f"tensor {entry.name} is of type {entry.kind}: {error}") from error
    return torch.from_numpy(values).view(entry.shape)


_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_DECODERS = {"Q4_0": _decode_q4_0, "Q4_1": _decode_q4_1, "Q8_0": _decode_q8_0}
