"""Runs steps on an NVIDIA GPU."""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import torch

from engine.attention.cascade_table import find_cascade
from engine.attention.gpu_select import create_gpu_attention
from engine.attention.triton_backend import TritonAttention
from engine.batch import ForwardBatch, ModelRunnerOutput, SchedulerOutput
from engine.config import EngineConfig
from engine.forward_batch import build_forward_batch
from engine.gpu.decode_graphs import DecodeGraphs, ToldStep
from engine.gpu.landings import Landings
from engine.gpu.losses import telling_losses
from engine.gpu.memory import pool_bytes
from engine.gpu.odd_steps import odd_steps
from engine.gpu.ranking import USUAL_WORDS
from engine.gpu.room import make_room, read_memory
from engine.gpu.sampler import GpuSampler, adjusted_draws, samples
from engine.gpu.staging import send
from engine.kv_cache import KvCache
from engine.model_runner import COMPUTE, DTYPES, ModelRunner
from engine.models import DecoderModel, load_model
from engine.parallel.group import Group
from engine.parallel.ranks import Ranks
from engine.parallel.step_message import Array
from engine.request import PENDING, Request
from engine.weights.checkpoint import Checkpoint, open_checkpoint
from engine.weights.dummy_checkpoint import DummyCheckpoint

# Of the messages to other ranks, beside COMPUTE and COPY: capture the decode steps, replay one of
# them, take over the tokens that rank 0 has drawn.
CAPTURE, REPLAY, KEEP = 2, 3, 4


class GpuModelRunner(ModelRunner):
    """Decode steps replay a graph once ``warm_up`` has captured them; all others are eager."""

    warm_up_tokens = 0
    warm_up_batches = (1, 8, 32)

    def __init__(
        self,
        config: EngineConfig,
        checkpoint: Checkpoint | None = None,
        *,
        group: Group | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self._device = torch.device("cuda", torch.cuda.current_device())
        if checkpoint is None:
            dummy = config.load_format == "dummy"
            path = config.model_path
            checkpoint = DummyCheckpoint(path, self._device) if dummy else open_checkpoint(path)
        make_room(config, checkpoint.config, self._device)
        super().__init__(
            config, checkpoint, group=group, ranks=ranks, make_attention=create_gpu_attention
        )
        self._copies = torch.cuda.Stream(self._device)
        self._graphs: DecodeGraphs | None = None
        self._landings = Landings(config.max_num_seqs)
        self._rankings = Landings(config.max_num_seqs * USUAL_WORDS)
        # Of the last launch: the place of each request's token among those drawn.
        self._rows: dict[Request, int] = {}

    def _load(self, checkpoint: Checkpoint) -> DecoderModel:
        dtype = DTYPES[self._config.dtype]
        return load_model(checkpoint, dtype, device=self._device, group=self._group)

    def _make_kv_cache(self) -> KvCache:
        # Before the pool takes what is free; on every rank, since their pools are of one size.
        self._gpu_sampler = GpuSampler(
            self.model_config.vocab_size, self._config.max_num_seqs, self._device
        )
        # Loading leaves blocks behind that only the allocator's cache holds.
        torch.cuda.empty_cache()
        memory_bytes = self._config.kv_memory_bytes or pool_bytes(
            read_memory(self._device),
            torch.cuda.memory_reserved(self._device),
            self._config.workers_on_device,
        )
        if self._group is not None:
            # Block ids mean the same on every rank.
            memory_bytes = self._group.smallest(memory_bytes, self._device)
        return KvCache.from_memory(
            self._rank_config,
            memory_bytes=memory_bytes,
            block_size=self._config.block_size,
            dtype=DTYPES[self._config.dtype],
            device=self._device,
        )

    def run(self, output: SchedulerOutput) -> ModelRunnerOutput:
        return self.launch(output)()

    def launch(self, output: SchedulerOutput) -> Callable[[], ModelRunnerOutput]:
        """A token that the last launch draws (PENDING) is passed on from it on the device.

        It and what it returns raise DeviceLost for an error that every later call would meet too.
        Where it raises anything else nothing that it launched is still running.
        """
        with telling_losses():
            if self._ranks is None:
                result = self._launch_or_nothing(output)
            else:
                with self._ranks.in_step():
                    result = self._launch(output)

        def wait() -> ModelRunnerOutput:
            with telling_losses():
                return result()

        return wait

    def _launch_or_nothing(self, output: SchedulerOutput) -> Callable[[], ModelRunnerOutput]:
        try:
            return self._launch(output)
        except Exception:
            # What came before the error writes KV into blocks that are about to be given back.
            torch.cuda.current_stream().synchronize()
            raise

    @torch.inference_mode()
    def _launch(self, output: SchedulerOutput) -> Callable[[], ModelRunnerOutput]:
        # Now: whether a part draws is not to be seen once it counts as computed.
        drawing = [part.samples for part in output.scheduled]
        sampling = [part.request for part in output.scheduled if part.samples]
        draws = adjusted_draws(sampling)
        replays = self._replays(output)
        if replays:
            assert self._graphs is not None
            sources = [self._source(each) for each in sampling]
            logits, began = self._graphs.replay(sampling, sources)
            last_tokens, token_ids = self._graphs.token_ids, self._graphs.drawn[: len(sampling)]
        else:
            (logits, last_tokens), began = self._run_eagerly(output), None
            token_ids = self._gpu_sampler.draw(logits, sampling)
        ranking = None
        if draws:
            ranking = self._gpu_sampler.redraw(logits, last_tokens, draws, token_ids)
        if draws or not replays:
            self._keep(token_ids)
        self._rows = {request: row for row, request in enumerate(sampling)}
        check = None
        if self._ranks is not None:
            # In a sum the device waits for the others, and for what their hosts do.
            check, began = self._ranks.check, None
        landing = self._landings.send(token_ids, check, began)
        ranked = None if ranking is None else self._rankings.send(ranking.words, check)

        def result() -> ModelRunnerOutput:
            landed = landing()
            drawn: list[int] = landed.words.tolist()
            logprobs = {}
            if ranking is not None and ranked is not None:
                logprobs = ranking.read(ranked().words, drawn)
            by_request = iter(samples(sampling, drawn, logprobs))
            return ModelRunnerOutput(
                tuple(next(by_request) if part_draws else () for part_draws in drawing),
                landed.device_time,
            )

        return result

    @property
    def graphs(self) -> DecodeGraphs | None:
        """The captured decode steps, once it is warm."""
        return self._graphs

    def runs_ahead(self, output: SchedulerOutput) -> bool:
        return (
            self._graphs is not None
            and len(output.scheduled) <= self._graphs.max_sequences
            and all(len(part.request.choices) == 1 for part in output.scheduled)
        )

    def runs_apart(self, output: SchedulerOutput) -> bool:
        return True

    def _run_eagerly(self, output: SchedulerOutput) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits of the sequences that draw, and the last token of each (int32)."""
        batch = build_forward_batch(output, self.kv_cache.block_size)
        passed = self._passed_tokens(output, batch)
        if self._ranks is not None:
            self._ranks.send(COMPUTE, [passed, *batch.arrays()])
        return self._compute_passing(batch, passed)

    def _compute_passing(
        self, batch: ForwardBatch, passed: Array
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``passed`` (tokens, 2): places in the batch, and of what was drawn the tokens there."""
        batch = batch.to(self._device)
        if len(passed):
            assert self._graphs is not None
            places, rows = send(list(passed.T), self._device)
            batch.token_ids[places] = self._graphs.drawn[rows].long()
        logits = self._compute(batch)
        if logits is None:
            logits = torch.empty(0, device=self._device)
        return logits, batch.token_ids[batch.logit_indices].int()

    @torch.inference_mode()
    def follow(self, kind: int, arrays: Sequence[Array]) -> None:
        if kind == CAPTURE:
            ((shares,),) = arrays
            # Rank 0 alone looks for what sequences share.
            self._graphs = self._capture((lambda members, tokens: False) if shares else None)
        elif kind == REPLAY:
            assert self._graphs is not None
            self._graphs.replay_told(ToldStep.from_arrays(arrays))
        elif kind == KEEP:
            ((number,),) = arrays
            self._share_drawn(int(number))
        elif kind == COMPUTE:
            passed, *batch = arrays
            self._compute_passing(ForwardBatch.from_arrays(batch), passed)
        else:
            super().follow(kind, arrays)

    def _source(self, request: Request) -> int:
        """Where among the tokens that the last launch draws the request's next one is, or -1."""
        is_pending = request.token_ids[request.num_computed_tokens] == PENDING
        return self._rows[request] if is_pending else -1

    def _passed_tokens(self, output: SchedulerOutput, batch: ForwardBatch) -> Array:
        sources = [self._source(part.request) for part in output.scheduled]
        starts = [0, *itertools.accumulate(batch.query_lens)]
        pairs = [pair for pair in zip(starts, sources, strict=False) if pair[1] >= 0]
        return np.array(pairs, dtype=np.int64).reshape(-1, 2)

    def _keep(self, token_ids: torch.Tensor) -> None:
        """Puts drawn tokens where the next step finds them, on every rank."""
        if self._graphs is None or len(token_ids) > self._graphs.max_sequences:
            return
        self._graphs.drawn[: len(token_ids)] = token_ids
        if self._ranks is not None and len(token_ids):
            self._ranks.send(KEEP, [np.array([len(token_ids)])])
            self._share_drawn(len(token_ids))

    def _share_drawn(self, number: int) -> None:
        assert self._graphs is not None and self._group is not None
        self._group.broadcast(self._graphs.drawn[:number])

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """On a stream of its own: it waits for the copies, and for no step under way."""
        with telling_losses(), torch.cuda.stream(self._copies):
            super().copy_blocks(copies)
            self._copies.synchronize()

    def warm_up(self) -> float:
        """Compiles every kernel, and captures decode steps of every batch size for who decodes."""
        seconds = super().warm_up()
        self._run_odd_shapes()
        if self._graphs is None and self._config.captures_decode:
            row = find_cascade(self._rank_config, torch.cuda.get_device_name(self._device))
            if self._ranks is not None:
                self._ranks.send(CAPTURE, [np.array([row is not None], dtype=np.int32)])
            self._graphs = self._capture(None if row is None else row.pays)
        return seconds

    def _run_odd_shapes(self) -> None:
        """Triton compiles a kernel anew for numbers that are 1, or no multiples of 16."""
        for output in odd_steps(
            self._config.max_num_batched_tokens, self.max_model_len, self.kv_cache.block_size
        ):
            self.run(output)

    @torch.inference_mode()
    def _capture(self, pays: Callable[[int, int], bool] | None) -> DecodeGraphs:
        attention = self._attention
        assert isinstance(attention, TritonAttention)
        graphs = DecodeGraphs(
            self._model,
            self.kv_cache,
            attention,
            max_sequences=self._config.max_num_seqs,
            max_model_len=self.max_model_len,
            pays=pays,
            tell=None if self._ranks is None else self._tell,
        )
        graphs.capture()
        return graphs

    def _tell(self, step: ToldStep) -> None:
        assert self._ranks is not None
        self._ranks.send(REPLAY, step.arrays())

    def _replays(self, output: SchedulerOutput) -> bool:
        return (
            self._graphs is not None
            and len(output.scheduled) <= self._graphs.max_sequences
            and all(
                part.num_new_tokens == 1 and part.samples and len(part.request.choices) == 1
                for part in output.scheduled
            )
        )
