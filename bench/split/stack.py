"""A gateway, a prefill and a decode worker, on GPUs where there are any."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from batonctl.service_spec import Role
from bench.gpu import CONFIG
from bench.stack import WORKERS, running_stack


@dataclass(frozen=True, slots=True)
class Machine:
    """What is measured here: 8B shapes on up to two GPUs, or the default model on a CPU.

    ``rate`` is requests a second, ``scale`` of the lengths of the Azure trace.
    """

    num_gpus: int
    lengths: tuple[int, ...]
    runs: int
    rate: float
    scale: float
    streams: int
    stream_context: int
    stream_tokens: int

    @classmethod
    def here(cls) -> "Machine":
        num_gpus = min(2, torch.cuda.device_count())
        if num_gpus:
            return cls(num_gpus, (512, 2048, 8192, 32000), 7, 24.0, 1.0, 32, 1024, 600)
        return cls(0, (512, 2048), 5, 0.5, 0.25, 8, 128, 64)

    @property
    def file(self) -> str:
        """Where the results go."""
        return "split" if self.num_gpus else "split_cpu"

    def write_model(self, folder: Path) -> str:
        """The model to serve: a folder of its own on GPUs, else the default model's name."""
        if not self.num_gpus:
            return "smollm2-135m"
        _write_8b_shape(folder)
        return str(folder)

    def worker_flags(self, index: int) -> tuple[list[str], dict[str, str]]:
        """Flags and environment of a worker."""
        if not self.num_gpus:
            return ["--device=cpu", "--threads=1"], {}
        share = "1" if self.num_gpus > 1 else "2"
        flags = ["--device=cuda", "--load-format=dummy", f"--workers-on-device={share}"]
        return flags, {"CUDA_VISIBLE_DEVICES": str(min(index, self.num_gpus - 1))}


@asynccontextmanager
async def running_on(machine: Machine, model: str, folder: Path) -> AsyncIterator[str]:
    """The gateway's address, once everything is ready; logs and traces go to ``folder``."""
    workers = {role: machine.worker_flags(index) for index, role in enumerate(WORKERS)}
    flags = {role: each for role, (each, _) in workers.items()}
    environments = {role: each for role, (_, each) in workers.items()}
    async with running_stack(model, folder, flags, environments) as stack:
        yield stack[Role.GATEWAY].address


def _write_8b_shape(folder: Path) -> None:
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
