"""Prefill and decode on GPUs, each on its own where there are two: equal to one process."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from baton.client import BatonClient
from baton.v1.generation_pb2 import SamplingParams as SamplingParamsPb
from bench.tiny_model import tiny_prompt
from engine.config import EngineConfig
from engine.llm_engine import LLMEngine
from tests.e2e.engine_reference import EOS_TOKEN_IDS
from tests.e2e.gateway_process import gateway_for
from tests.e2e.metrics_page import read_counter
from tests.e2e.worker_process import WorkerProcess, running
from worker.leg import params_from_pb

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
NUM_REQUESTS = 48
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.8, "top_p": 0.9, "top_k": 50},
    {"temperature": 1.0, "n": 2},
    {"temperature": 1.0, "repetition_penalty": 1.2, "logprobs": 2},
)
# Less than all want at once, so that some are preempted.
POOL = ("--kv-memory-bytes", str(2 * 2 * 2 * 16 * 4 * 6_000))


def sampling(index: int) -> dict[str, Any]:
    kind = KINDS[index % len(KINDS)]
    return {"seed": index, "max_tokens": 40 + 17 * (index % 9), "ignore_eos": True, **kind}


REQUESTS = [
    (tiny_prompt(1 + 11 * index, seed=index % 40), sampling(index)) for index in range(NUM_REQUESTS)
]


# By the setting, what moves blocks where both workers are on this host.
TRANSPORTS = {"nixl": "nixl", "auto": "cuda_ipc"}


@pytest.fixture(scope="module", params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def workers(
    tiny_model: str, traces: Path, transport: str
) -> Iterator[tuple[WorkerProcess, WorkerProcess]]:
    last_gpu = str(torch.cuda.device_count() - 1)
    flags = ("--workers-on-device", "2", "--max-num-batched-tokens", "96", "--transport", transport)
    with (
        running(
            *("prefill", *flags), trace_directory=traces, model=tiny_model, CUDA_VISIBLE_DEVICES="0"
        ) as prefill,
        running(
            *("decode", *flags, *POOL),
            trace_directory=traces,
            model=tiny_model,
            CUDA_VISIBLE_DEVICES=last_gpu,
        ) as decode,
    ):
        yield prefill.wait_ready(), decode.wait_ready()


@pytest.fixture(scope="module")
def expected(tiny_model: str) -> list[list[list[int]]]:
    """The tokens of each choice of each request, of one process on one GPU."""
    engine = LLMEngine(
        EngineConfig(tiny_model, dtype="float32", kv_memory_bytes=1 << 28, device="cuda")
    )
    completions = engine.generate(
        [tokens for tokens, _ in REQUESTS],
        [
            params_from_pb(SamplingParamsPb(**options), 1_000, EOS_TOKEN_IDS)
            for _, options in REQUESTS
        ],
        [options.get("n", 1) for _, options in REQUESTS],
    )
    return [[list(each.token_ids) for each in choices] for choices in completions]


async def ask(prefill: WorkerProcess, decode: WorkerProcess, model: str, traces: Path) -> Any:
    """The tokens of each choice of each request, all asked at once, through a gateway."""
    with gateway_for([prefill], [decode], traces, "--model", model) as address:
        async with BatonClient(address) as client, asyncio.timeout(120):
            for _ in range(2):
                answers = await asyncio.gather(
                    *(client.generate(tokens, **options) for tokens, options in REQUESTS)
                )
    return [[list(choice.token_ids) for choice in answer.choices] for answer in answers]


async def test_answers_through_the_split_are_those_of_one_process(
    workers: tuple[WorkerProcess, WorkerProcess],
    expected: list[list[list[int]]],
    tiny_model: str,
    traces: Path,
    transport: str,
) -> None:
    """In float32: what differs between kernels and batches is far below what decides a token."""
    prefill, decode = workers
    assert await ask(prefill, decode, tiny_model, traces) == expected
    assert (
        read_counter(decode, "baton_kv_transfer_bytes_total", transport=TRANSPORTS[transport]) > 0
    )
    assert read_counter(decode, "baton_local_prefills_total") == 0


@pytest.mark.multi_gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two NVIDIA GPUs")
@pytest.mark.parametrize("sizes", [(1, 2), (2, 1), (2, 2)], ids=["1 to 2", "2 to 1", "2 to 2"])
@pytest.mark.parametrize("transport", TRANSPORTS, indirect=True)
async def test_any_numbers_of_gpus_on_both_sides_give_the_answers_of_one_process(
    sizes: tuple[int, int],
    expected: list[list[list[int]]],
    tiny_model: str,
    traces: Path,
    transport: str,
) -> None:
    flags = ("--workers-on-device", "2", "--max-num-batched-tokens", "96", "--transport", transport)
    sides = [
        ("prefill", "--checksums", "--tensor-parallel-size", str(sizes[0])),
        ("decode", *POOL, "--tensor-parallel-size", str(sizes[1])),
    ]
    with ExitStack() as stack:
        prefill, decode = [
            stack.enter_context(
                running(
                    *(*side, *flags),
                    trace_directory=traces,
                    model=tiny_model,
                    CUDA_VISIBLE_DEVICES="0,1",
                )
            )
            for side in sides
        ]
        answers = await ask(prefill.wait_ready(), decode.wait_ready(), tiny_model, traces)
        assert read_counter(decode, "baton_local_prefills_total") == 0
    assert answers == expected
