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
    "protocol_version": 1,
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
    other = replace(LAYOUT, protocol_version=1, num_layers=9)
    with pytest.raises(LayoutMismatch, match="protocol_version"):
        check_same_layout(decode=LAYOUT, prefill=other)


def test_a_layout_survives_the_wire() -> None:
    assert KvLayout.from_pb(LAYOUT.to_pb()) == LAYOUT


@pytest.mark.parametrize("num_ranks", [1, 2, 4, 8])
def test_ranks_hold_every_head_once_and_in_order(num_ranks: int) -> None:
    layout = replace(LAYOUT, num_kv_heads=8)
    ranks = layout.divide(num_ranks)
    assert len(ranks) == num_ranks
    assert layout.is_divided_by(ranks)


@pytest.mark.parametrize(
    "ranks",
    [
        (),
        (HeadRange(0, 1),),
        (HeadRange(1, 1), HeadRange(0, 1)),
        (HeadRange(0, 2), HeadRange(1, 1)),
    ],
    ids=["none", "too few", "out of order", "one twice"],
)
def test_other_ranks_are_none_of_a_layout(ranks: tuple[HeadRange, ...]) -> None:
    assert not LAYOUT.is_divided_by(ranks)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_block_bytes_are_those_of_the_pool(dtype: str) -> None:
    layout = replace(LAYOUT, dtype=dtype)
    pool = KvCache(MODEL, num_blocks=2, block_size=16, dtype=getattr(torch, dtype))
    assert layout.block_bytes(layout.num_kv_heads) == pool.block_bytes
