"""What a worker says about its attempts is what is there."""

import shutil
from dataclasses import replace
from pathlib import Path

from tests.engine.tiny_model import write_tiny_model
from tests.worker.pair import ENGINE, worker_pair


async def test_decode_counts_those_without_room_whatever_becomes_of_them(
    tiny_model: Path, tmp_path: Path
) -> None:
    # What runs goes on for much longer than it takes to see it run.
    model = write_tiny_model(tmp_path, max_position_embeddings=32_768)
    shutil.copy(tiny_model / "tokenizer.json", model)
    async with worker_pair(model, engine=replace(ENGINE, kv_memory_bytes=64 << 20)) as pair:
        client = pair.client
        left_alone = [await client.begin([5] * 20, prefill_leg=False) for _ in range(3)]
        await client.watch_until("decode", lambda load: load.waiting == 3)
        await client.cancel(left_alone[0])
        await client.watch_until("decode", lambda load: load.waiting == 2)
        running = await client.begin([6] * 20, max_tokens=20_000, ignore_eos=True)
        await running.stepped.wait()
        await client.watch_until("decode", lambda load: (load.waiting, load.running) == (2, 1))
        for attempt in (*left_alone[1:], running):
            await client.cancel(attempt)
        await client.all_blocks_back()
