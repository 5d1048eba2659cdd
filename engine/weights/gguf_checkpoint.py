"""A GGUF file as a Checkpoint."""

import re

import torch

from engine.config import ModelConfig
from engine.errors import CheckpointError
from engine.weights.checkpoint import Checkpoint
from engine.weights.gguf_config import config_from_gguf
from engine.weights.gguf_tensor import gguf_tensor
from engine.weights.stored_tensor import StoredTensor, select_rows
from modelfiles.gguf_file import GgufFile

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")


class GgufCheckpoint(Checkpoint):
    """Undoes what the GGUF converters do: names, and the rotary order of q and k rows."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = GgufFile(path)
        self.files = dict.fromkeys(self._file.entries, self._file)
        self.config: ModelConfig = config_from_gguf(self._file)

    def tensor(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        stored_name = _gguf_name(name)
        entry = self._file.entries.get(stored_name)
        if entry is None:
            raise CheckpointError(f"{self.path}: tensor {stored_name} is missing")
        if entry.shape != shape:
            raise CheckpointError(
                f"{self.path}: tensor {stored_name} has shape {entry.shape}, expected {shape}"
            )
        stored = gguf_tensor(self._raw(stored_name), entry)
        if self.config.architecture == "llama" and "attn_q." in stored_name:
            return select_rows(stored, _half_split_rows(self.config.num_heads, shape[0]))
        if self.config.architecture == "llama" and "attn_k." in stored_name:
            return select_rows(stored, _half_split_rows(self.config.num_kv_heads, shape[0]))
        return stored


def _gguf_name(name: str) -> str:
    module, _, suffix = name.rpartition(".")
    if (match := _LAYER.fullmatch(module)) is not None:
        return f"blk.{match[1]}.{_NAMES[match[2]]}.{suffix}"
    return f"{_NAMES[module]}.{suffix}"


def _half_split_rows(num_heads: int, num_rows: int) -> torch.Tensor:
    """Source row of each row: llama files interleave the two rotary halves of a head."""
    return torch.arange(num_rows).view(num_heads, -1, 2).transpose(1, 2).flatten()
