"""Measures decode attention with and without shared prefixes, on this machine's GPU.

As in a step: captured, one layer after the other, so that none finds its keys in the cache.
"""

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from engine.attention.cascade import Cascade
from engine.attention.cascade_plan import plan_cascade
from engine.attention.cascade_table import NEVER, CascadeHeads, CascadeRow
from engine.attention.prefix_groups import SharedPrefix
from engine.attention.triton_backend import TritonAttention
from engine.batch import ForwardBatch
from engine.config import ModelConfig
from engine.kernels.cuda.decode_shape import DecodeShape
from engine.kernels.cuda.prefix_shape import PrefixShape, prefix_unit
from engine.kv_cache import KvCache

GROUPS = (2, 4, 8, 16, 32, 64, 128, 256)
SHARED = (64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
OWN = (16, 256, 1024, 4096)
BLOCK_SIZE = 16
# What a choice may cost over the better one of the two.
ALLOWED_SHARE, ALLOWED_US = 0.02, 5.0
_MOST_LAYERS = 8
_MEMORY_SHARE = 0.5
_REPEATS = 5


@dataclass(frozen=True, slots=True)
class CascadePoint:
    """``members`` sequences with ``shared`` tokens in common and ``own`` each."""

    members: int
    shared: int
    own: int

    @property
    def num_tokens(self) -> int:
        return self.shared + self.members * self.own


@dataclass(frozen=True, slots=True)
class CascadeTime:
    """Microseconds of a layer, every sequence by itself and all together."""

    point: CascadePoint
    flat: float
    cascade: float

    def chosen(self, row: CascadeRow) -> float:
        """What the engine's choice takes."""
        unit = prefix_unit(BLOCK_SIZE)
        shared = self.point.shared // unit * unit
        pays = shared > 0 and row.pays(self.point.members, shared)
        return self.cascade if pays else self.flat

    def excess(self, row: CascadeRow) -> float:
        """Microseconds that the choice takes beyond what it may."""
        best = min(self.flat, self.cascade)
        return max(self.chosen(row) - best * (1 + ALLOWED_SHARE) - ALLOWED_US, 0.0)


class CascadePool:
    """Layers full of random numbers: as many as memory and patience allow."""

    def __init__(self, heads: CascadeHeads) -> None:
        self.heads = heads
        device = torch.device("cuda", torch.cuda.current_device())
        token_bytes = 4 * heads.num_kv_heads * heads.head_dim
        room = int(torch.cuda.mem_get_info(device)[0] * _MEMORY_SHARE) // token_bytes
        most = CascadePoint(max(GROUPS), max(SHARED), max(OWN)).num_tokens
        # Two layers at least, of the points that fit.
        self.num_tokens = min(most, room // 2)
        self.kv_cache = KvCache(
            _model(heads, num_layers=max(2, min(_MOST_LAYERS, room // self.num_tokens))),
            num_blocks=self.num_tokens // BLOCK_SIZE,
            block_size=BLOCK_SIZE,
            dtype=torch.bfloat16,
            device=device,
        )
        self.kv_cache.tensor.normal_()
        blocks = torch.randperm(self.kv_cache.num_blocks, generator=torch.Generator())
        self._blocks = (blocks + 1).int().to(device)

    def points(self) -> list[CascadePoint]:
        """Those of the grid that fit."""
        points = (CascadePoint(*each) for each in itertools.product(GROUPS, SHARED, OWN))
        return [point for point in points if point.num_tokens <= self.num_tokens]

    def tables(self, point: CascadePoint) -> torch.Tensor:
        """(members, blocks) int32: blocks lie anywhere, as after hours of service."""
        num_shared, num_own = point.shared // BLOCK_SIZE, point.own // BLOCK_SIZE
        shared = self._blocks[:num_shared].expand(point.members, -1)
        owns = self._blocks[num_shared : num_shared + point.members * num_own]
        return torch.cat((shared, owns.view(point.members, num_own)), dim=1)


class CapturedAttention:
    """Decode attention of all layers for ``members`` sequences, captured both ways."""

    def __init__(
        self,
        pool: CascadePool,
        members: int,
        shape: PrefixShape | None = None,
        own_shape: DecodeShape | None = None,
    ) -> None:
        """``shape`` and ``own_shape``: other ones than the tables'."""
        self._pool = pool
        heads, device = pool.heads, pool.kv_cache.tensor.device
        width = (max(SHARED) + max(OWN)) // BLOCK_SIZE
        self._tables = torch.zeros(members * width, dtype=torch.int32, device=device)
        self._stride = torch.ones(1, dtype=torch.int32, device=device)
        self._batch = _batch(members, device)
        self.query = torch.randn(members, heads.num_heads, heads.head_dim, device=device).bfloat16()
        self._attention = TritonAttention(pool.kv_cache)
        self._cascade = Cascade(pool.kv_cache, heads.num_heads, members, shape, own_shape)
        self._graphs = {shares: self._capture(shares) for shares in (False, True)}

    def load(self, point: CascadePoint) -> None:
        """Makes the next measurements those of ``point``."""
        tables = self._pool.tables(point)
        self._tables[: tables.numel()] = tables.flatten()
        self._stride.fill_(tables.shape[1])
        self._batch.seq_lens.fill_(point.shared + point.own)
        shared = point.shared // prefix_unit(BLOCK_SIZE) * prefix_unit(BLOCK_SIZE)
        everyone = tuple(range(point.members))
        prefixes = [SharedPrefix(everyone, 0, shared)] if shared else []
        plan = plan_cascade(prefixes, point.members, self._cascade.limits)
        words = torch.zeros_like(self._cascade.words, device="cpu")
        self._cascade.pack(plan, words.numpy())
        self._cascade.words.copy_(words)

    def time(self, point: CascadePoint) -> CascadeTime:
        self.load(point)
        return CascadeTime(point, self.microseconds(shares=False), self.microseconds(shares=True))

    def microseconds(self, *, shares: bool) -> float:
        """Of one layer of the loaded point."""
        graph, _ = self._graphs[shares]
        return microseconds(graph.replay) / self._pool.kv_cache.num_layers

    def output(self, *, shares: bool) -> torch.Tensor:
        """(members, heads, head_dim) of the last layer."""
        graph, output = self._graphs[shares]
        graph.replay()
        return output.clone()

    def _capture(self, shares: bool) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        cascade = self._cascade if shares else None

        def run() -> torch.Tensor:
            self._attention.plan_captured(self._batch, self._tables, self._stride, cascade)
            for layer in range(self._pool.kv_cache.num_layers):
                output = self._attention.run(layer, self.query)
            return output

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = run()
        return graph, output


def microseconds(run: Callable[[], object]) -> float:
    """What ``run`` takes on the device, the median of a few."""
    run()
    times = []
    for _ in range(_REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times)


def measure_cascade(
    pool: CascadePool, advance: Callable[[], None] = lambda: None
) -> Iterator[CascadeTime]:
    """Times every point of the grid that fits; ``advance`` is called after each."""
    for members, points in itertools.groupby(pool.points(), lambda point: point.members):
        captured = CapturedAttention(pool, members)
        for point in points:
            yield captured.time(point)
            advance()


def fit_row(times: Sequence[CascadeTime], heads: CascadeHeads, gpu: str, note: str) -> CascadeRow:
    """The row whose choices lose the least over ``times``."""
    pairs: list[tuple[int, int]] = []
    for members in sorted({each.point.members for each in times}):
        own = [each for each in times if each.point.members == members]
        least = _fit(own)
        if least != (pairs[-1][1] if pairs else NEVER):
            pairs.append((members, least))
    return CascadeRow(gpu, heads, tuple(pairs), note)


def _fit(times: Sequence[CascadeTime]) -> int:
    """From how many shared tokens on, for one number of members."""
    unit = prefix_unit(BLOCK_SIZE)

    def loss(least: int) -> tuple[float, float]:
        row = CascadeRow("", CascadeHeads(0, 0, 0), ((0, least),), "")
        over = (each.chosen(row) / min(each.flat, each.cascade) for each in times)
        return sum(each.excess(row) for each in times), sum(over)

    shared = sorted({each.point.shared for each in times if each.point.shared >= unit})
    # Where two lose the same the one that shares less.
    return min((NEVER, *reversed(shared)), key=loss)


def _model(heads: CascadeHeads, num_layers: int) -> ModelConfig:
    return ModelConfig(
        architecture="measured",
        vocab_size=1,
        hidden_size=heads.num_heads * heads.head_dim,
        intermediate_size=1,
        num_layers=num_layers,
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        rms_norm_eps=1e-5,
        rope_theta=1e4,
        max_position_embeddings=1,
    )


def _batch(members: int, device: torch.device) -> ForwardBatch:
    """As much of a decode step as attention reads: its lengths, which ``load`` fills in."""
    numbers = torch.arange(members + 1, device=device)
    return ForwardBatch(
        token_ids=numbers[:-1],
        positions=numbers[:-1],
        slot_blocks=numbers[:-1],
        slot_offsets=numbers[:-1],
        query_starts=numbers,
        seq_lens=torch.ones(members, dtype=torch.int32, device=device),
        block_tables=numbers[:-1].unsqueeze(1),
        logit_indices=numbers[:-1],
        query_lens=(1,) * members,
        context_lens=(0,) * members,
    )
