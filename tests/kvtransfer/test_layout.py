"""Fingerprints of pools (protocol 2.4)."""

from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from engine.config import ModelConfig
from engine.kv_cache import KvCache
from kvtransfer.errors import LayoutMismatch
from kvtransfer.layout import HeadRange, KvLayout, check_same_layout

MODEL = ModelConfig(
    architecture="llama",
    vocab_size=10,
    hidden_size=8,
    intermediate_size=8,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
    max_position_embeddings=64,
)
LAYOUT = KvLayout.of_model(
    MODEL, model_digest="abc", dtype="bfloat16", block_size=16, memory="host"
)

OTHER_VALUES: dict[str, Any] = {
    "model_digest": "abd",
    "dtype": "float32",
    "num_layers": 4,
    "num_kv_heads": 4,
    "head_dim": 16,
    "block_size": 32,
    "ranks": (HeadRange(0, 1), HeadRange(1, 1)),
    "protocol_version": 2,
    "memory": "device",
    "pool_order": "layer,block,head,kv,token,dim",
}


def test_every_field_has_a_differing_value_here() -> None:
    assert set(OTHER_VALUES) == {field.name for field in fields(KvLayout)}


def test_equal_layouts_have_equal_digests() -> None:
    again = KvLayout.of_model(
        MODEL, model_digest="abc", dtype="bfloat16", block_size=16, memory="host"
    )
    assert again.digest == LAYOUT.digest
    assert len(LAYOUT.digest) == 32
    check_same_layout(decode=LAYOUT, prefill=again)


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_any_difference_changes_the_digest_and_is_named_with_both_values(name: str) -> None:
    other = replace(LAYOUT, **{name: OTHER_VALUES[name]})
    assert other.digest != LAYOUT.digest
    with pytest.raises(LayoutMismatch) as caught:
        check_same_layout(decode=LAYOUT, prefill=other)
    assert caught.value.field == name
    assert repr(caught.value.decode) in str(caught.value)
    assert repr(caught.value.prefill) in str(caught.value)


def test_another_protocol_version_is_named_before_anything_else() -> None:
    other = replace(LAYOUT, protocol_version=2, num_layers=9)
    with pytest.raises(LayoutMismatch, match="protocol_version"):
        check_same_layout(decode=LAYOUT, prefill=other)


def test_ranks_with_other_heads_are_named_by_their_heads() -> None:
    other = replace(LAYOUT, ranks=(HeadRange(0, 1), HeadRange(1, 1)))
    with pytest.raises(LayoutMismatch, match=r"heads 0\.\.1.*heads 1\.\.1"):
        check_same_layout(decode=LAYOUT, prefill=other)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_block_bytes_are_those_of_the_pool(dtype: str) -> None:
    layout = replace(LAYOUT, dtype=dtype)
    pool = KvCache(MODEL, num_blocks=2, block_size=16, dtype=getattr(torch, dtype))
    assert layout.block_bytes(layout.num_kv_heads) == pool.block_bytes
