"""What a transport changes or loses is noticed, and never becomes text (protocol 4.3)."""

from pathlib import Path
from typing import Any

import pytest

from baton.client import BatonClient
from bench.tiny_model import tiny_prompt
from tests.e2e.engine_reference import Reference
from tests.e2e.gateway_process import running_gateway
from tests.e2e.metrics_page import read_counter
from tests.e2e.service_process import running_service
from tests.e2e.split_client import split_client
from tests.e2e.tiny_model import POOL

# Fewer than open the circuit of a worker.
NUM_SPOILED = 4
SAMPLING: dict[str, Any] = {"temperature": 0.8, "seed": 3, "max_tokens": 20, "ignore_eos": True}


@pytest.mark.slow
async def test_each_such_read_costs_a_retry_and_no_answer(tiny_model: str, tmp_path: Path) -> None:
    traces = {"BATON_TRACE_DIR": str(tmp_path)}
    flags = (*POOL, "--model", tiny_model, "--dtype", "float32", "--threads", "1")
    spoiling = ("tests.e2e.spoiling_worker", *flags, str(NUM_SPOILED))
    with (
        running_service("prefill_svc", *flags, "--checksums", **traces) as prefill,
        running_service(*spoiling, **traces) as decode,
    ):
        prefill.wait_for_log("ready on")
        decode.wait_for_log("ready on")
        with running_gateway([prefill], [decode], tmp_path, "--model", tiny_model) as gateway:
            prompts = [tiny_prompt(70, seed=number) for number in range(6)]
            async with BatonClient(gateway.address) as client:
                answers = [
                    list((await client.generate(each, **SAMPLING)).choices[0].token_ids)
                    for each in prompts
                ]
            retried = read_counter(gateway, "baton_retries_total", reason="BLOCKS_CORRUPT")
        async with split_client(prefill, decode):
            # Every block must be back.
            pass
    completions = Reference(tiny_model).complete([(each, SAMPLING) for each in prompts])
    assert answers == [list(completion.token_ids) for (completion,) in completions]
    # Of one attempt several may have been spoiled.
    assert 0 < retried <= NUM_SPOILED
