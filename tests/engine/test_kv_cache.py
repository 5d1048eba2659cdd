import re
from pathlib import Path

import pytest
import torch

from engine.errors import ConfigurationError
from engine.kv_cache import KvCache
from tests.engine.attention_cases import make_batch, make_model, make_pool, scattered_blocks

_ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
HUGE_PAGES = _ENABLED.exists() and "[never]" not in _ENABLED.read_text()


def test_a_block_is_one_contiguous_piece_for_all_layers() -> None:
    pool = make_pool(make_model(), num_blocks=4, dtype=torch.bfloat16)
    assert pool.tensor.shape == (5, 2, 3, 2, 4, 16)
    assert pool.tensor.is_contiguous()
    assert pool.block_bytes == pool.tensor.stride(0) * pool.tensor.itemsize


def test_memory_holds_the_blocks_and_the_sink() -> None:
    model = make_model()
    block_bytes = make_pool(model, num_blocks=1, dtype=torch.bfloat16).block_bytes
    pool = KvCache.from_memory(
        model, memory_bytes=8 * block_bytes, block_size=4, dtype=torch.bfloat16
    )
    assert pool.num_blocks == 7
    assert pool.tensor.nbytes == 8 * block_bytes


def test_too_little_memory_names_the_setting() -> None:
    with pytest.raises(ConfigurationError, match="kv_memory_bytes"):
        KvCache.from_memory(make_model(), memory_bytes=100, block_size=4, dtype=torch.bfloat16)


@pytest.mark.skipif(not HUGE_PAGES, reason="this kernel gives no huge pages to who asks for them")
def test_the_pool_lies_in_huge_pages() -> None:
    model = make_model()
    pool = KvCache.from_memory(model, memory_bytes=32 << 20, block_size=4, dtype=torch.bfloat16)
    pool.tensor.fill_(1.0)
    assert huge_kib(pool.tensor.data_ptr()) >= 16 << 10


def huge_kib(address: int) -> int:
    """KiB in huge pages of the mapping that holds ``address``."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(bounds[1], 16) <= address < int(bounds[2], 16)
        elif inside and (size := re.match(r"AnonHugePages: +(\d+) kB", line)):
            return int(size[1])
    raise AssertionError("no mapping holds the address")


def test_store_writes_the_slots_and_nothing_else() -> None:
    pool = make_pool(make_model(), num_blocks=40, dtype=torch.float32)
    batch = make_batch([(3, 5), (1, 7)], scattered_blocks(40))
    before = pool.tensor.clone()
    k, v = torch.randn(2, 4, 2, 16)
    pool.store(1, k, v, batch)
    for token in range(4):
        slot = batch.slot_blocks[token], batch.slot_offsets[token]
        assert torch.equal(pool.tensor[slot[0], :, 1, 0, slot[1]], k[token])
        assert torch.equal(pool.tensor[slot[0], :, 1, 1, slot[1]], v[token])
        before[slot[0], :, 1, :, slot[1]] = torch.stack((k[token], v[token]), dim=1)
    assert torch.equal(pool.tensor, before)


def test_copy_block_copies_every_layer_and_head() -> None:
    pool = make_pool(make_model(), num_blocks=4, dtype=torch.float32)
    untouched = pool.tensor[4].clone()
    pool.copy_block(1, 3)
    assert torch.equal(pool.tensor[1], pool.tensor[3])
    assert torch.equal(pool.tensor[4], untouched)
