"""The split stack with a Llama-3.1-8B-shaped model with random weights on NVIDIA GPUs.

``python -m bench.split`` starts a gateway, a prefill and a decode worker, the workers on a GPU each
where there are two, asks them for first tokens and for 32 answers at once, prints a table and
writes ``bench/results/split.json``.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from baton.client import BatonClient
from bench.gpu import CONFIG
from bench.results import Figure, write_results

LENGTHS = (512, 2048, 8192)
# vLLM's, whose first token comes after the hand-off.
RIVALS = {2048: 68.4, 8192: 234.5}
RIVAL = "vLLM 0.24.0 split over NIXL, one prefill and one decode H200, all layers of a block in one"
RUNS = 7
STREAMS, STREAM_CONTEXT, STREAM_TOKENS = 32, 1024, 600
START_SECONDS = 120.0
PORTS = {"gateway": 7900, "prefill_svc": 7901, "decode_svc": 7902}


def write_model(folder: Path) -> None:
    """A configuration, a tokenizer of bytes, and the header of weights that nobody reads."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = Tokenizer(
        models.BPE(vocab={piece: number for number, piece in enumerate(alphabet)}, merges=[])
    )
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokens.decoder = decoders.ByteLevel()
    tokens.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    save_file({"unused": torch.zeros(1)}, folder / "model.safetensors")


@contextmanager
def service(module: str, folder: Path, *flags: str, **environment: str) -> Iterator[None]:
    """The process while entered; it is killed where it does not drain at once."""
    port = PORTS[module]
    command = [sys.executable, "-m", module, "--model", str(folder), "--port", str(port)]
    command += ["--metrics-port", str(port + 100), *flags]
    environment = {**os.environ, "BATON_TRACE_DIR": str(folder / "traces"), **environment}
    with (folder / f"{module}.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def stack(folder: Path, num_gpus: int) -> Iterator[None]:
    addresses = [f"127.0.0.1:{PORTS[module]}" for module in ("prefill_svc", "decode_svc")]
    share = "1" if num_gpus > 1 else "2"
    worker = ("--device", "cuda", "--load-format", "dummy", "--workers-on-device", share)
    with ExitStack() as entered:
        for index, module in enumerate(("prefill_svc", "decode_svc")):
            gpu = str(min(index, num_gpus - 1))
            entered.enter_context(service(module, folder, *worker, CUDA_VISIBLE_DEVICES=gpu))
        peers = ("--prefill-addresses", addresses[0], "--decode-addresses", addresses[1])
        entered.enter_context(service("gateway", folder, *peers))
        yield


def last_words(folder: Path, num_lines: int) -> str:
    """The ends of the services' logs."""
    logs = ((path.name, path.read_text().splitlines()) for path in folder.glob("*.log"))
    return "\n".join("\n  ".join([name, *lines[-num_lines:]]) for name, lines in logs)


async def wait_ready(client: BatonClient, folder: Path) -> None:
    """Returns when an answer has come through the whole stack; SystemExit with the logs else."""
    started = time.monotonic()
    while True:
        try:
            await client.generate([1, 2, 3], max_tokens=2, ignore_eos=True, deadline=20.0)
            return
        except Exception as error:
            if time.monotonic() - started > START_SECONDS:
                raise SystemExit(f"{error}\n{last_words(folder, 40)}") from error
            await asyncio.sleep(0.1)


async def times_of_tokens(client: BatonClient, prompt: Sequence[int], count: int) -> list[float]:
    """When each token came, in seconds from the question."""
    times: list[float] = []
    began = time.perf_counter()
    async for message in client.stream(prompt, max_tokens=count, ignore_eos=True, temperature=0.0):
        num_tokens = sum(len(delta.token_ids) for delta in message.deltas)
        times += [time.perf_counter() - began] * num_tokens
    assert len(times) == count
    return times


def prompt_of(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = torch.randint(256, (length,), generator=generator).tolist()
    return tokens


async def first_tokens(client: BatonClient, length: int) -> list[list[float]]:
    runs = []
    for run in range(RUNS + 1):
        runs.append(await times_of_tokens(client, prompt_of(length, 100 * length + run), 3))
    return runs[1:]


async def streams(client: BatonClient) -> list[float]:
    """Seconds between tokens while all streams run."""
    answers = await asyncio.gather(
        *(
            times_of_tokens(client, prompt_of(STREAM_CONTEXT, seed), STREAM_TOKENS)
            for seed in range(STREAMS)
        )
    )
    last_start = max(times[1] for times in answers)
    first_end = min(times[-1] for times in answers)
    return [
        later - earlier
        for times in answers
        for earlier, later in pairwise(times)
        if earlier > last_start and later <= first_end
    ]


def pulled(traces: Path) -> dict[int, list[dict[str, Any]]]:
    """What the decode worker says of every chunk that arrived, by the bytes of its prompt."""
    found: dict[int, list[dict[str, Any]]] = {}
    for path in traces.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            if "kv.pull" not in line:
                continue
            for resource in json.loads(line)["resourceSpans"]:
                for scope in resource["scopeSpans"]:
                    for span in scope["spans"]:
                        if span["name"] == "kv.pull":
                            chunks = [_attributes(event) for event in span["events"]]
                            total = sum(int(chunk["baton.bytes"]) for chunk in chunks)
                            found.setdefault(total, []).extend(chunks)
    return found


def _attributes(event: dict[str, Any]) -> dict[str, float]:
    return {
        pair["key"]: float(next(iter(pair["value"].values())))
        for pair in event["attributes"]
        if pair["key"] in ("baton.bytes", "baton.rate")
    }


async def measure(folder: Path, began: float) -> list[Figure]:
    figures: list[Figure] = []

    def add(name: str, value: float, unit: str, **more: Any) -> None:
        figures.append(Figure(name, round(value, 3), unit, **more))
        print(f"{name:32} {value:9.3f} {unit} {more or ''}", flush=True)

    async with BatonClient(f"127.0.0.1:{PORTS['gateway']}") as client:
        await wait_ready(client, folder)
        add("split.start.s", time.monotonic() - began, "s", note="processes to first answer")
        for length in LENGTHS:
            runs = await first_tokens(client, length)
            first = statistics.median(times[0] for times in runs) * 1e3
            second = statistics.median(times[1] - times[0] for times in runs) * 1e3
            rival = RIVALS.get(length)
            source = RIVAL if rival else None
            add(f"split.ttft.n{length}.ms", first, "ms", rival=rival, rival_source=source)
            add(f"split.second_token.n{length}.ms", second, "ms", note="after the first one")
        await asyncio.sleep(6)
        for total, chunks in sorted(pulled(folder / "traces").items()):
            rates = [chunk["baton.rate"] / 1e9 for chunk in chunks]
            best = f"{len(chunks)} chunks, {min(rates):.0f} to {max(rates):.0f} GB/s"
            add(f"split.pull.{total >> 20}mib.gbps", statistics.median(rates), "GB/s", note=best)
        gaps = sorted(await streams(client))
        add(f"split.itl.b{STREAMS}.p50.ms", statistics.median(gaps) * 1e3, "ms")
        add(f"split.itl.b{STREAMS}.p99.ms", gaps[len(gaps) * 99 // 100] * 1e3, "ms")
    return figures


def main() -> None:
    num_gpus = min(2, torch.cuda.device_count())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder)
        began = time.monotonic()
        try:
            with stack(folder, num_gpus):
                figures = asyncio.run(measure(folder, began))
        finally:
            print(last_words(folder, 6))
    packages = ("torch", "triton", "flashinfer-python", "nixl-cu13", "grpcio")
    hardware = {"gpu": f"{num_gpus} x {torch.cuda.get_device_name()}"}
    print(write_results("split", figures, packages, hardware=hardware))


if __name__ == "__main__":
    main()
