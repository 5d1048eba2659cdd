"""What a worker says of itself (protocol 1.4, 2.4)."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from kvtransfer.layout import KvLayout
from tests.worker.pair import ENGINE, worker_pair


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_a_worker_says_the_layout_of_its_kv_and_the_digest_of_that(
    tiny_model: Path, dtype: Literal["float32", "bfloat16"]
) -> None:
    async with worker_pair(tiny_model, engine=replace(ENGINE, dtype=dtype)) as pair:
        for role in ("prefill", "decode"):
            info = (await pair.client.watch_until(role, lambda load: True)).info
            assert (info.layout.dtype, info.layout.block_size) == (dtype, ENGINE.block_size)
            assert KvLayout.from_pb(info.layout).digest == info.layout_digest
