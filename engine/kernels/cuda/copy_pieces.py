"""Copying many pieces of memory in one launch, from wherever the GPU can read."""

import ctypes

import torch
import triton
import triton.language as tl

# What addresses and sizes must be multiples of: two words, one load of a thread.
ALIGNMENT = 16
# Enough bytes under way to fill a link between two GPUs, on less than half of an H200's
# processors: what else runs there keeps the others.
NUM_PROGRAMS = 64
_WORD_BYTES = 8
_CHUNK_WORDS = 2048


@triton.jit(do_not_specialize=["num_chunks", "chunks_a_piece"])
def copy_pieces_kernel(pieces, num_chunks, chunks_a_piece, CHUNK: tl.constexpr):
    place = tl.arange(0, CHUNK)
    for chunk in range(tl.program_id(0), num_chunks, tl.num_programs(0)):
        piece = pieces + (chunk // chunks_a_piece).to(tl.int64) * 3
        source = tl.load(piece).to(tl.pointer_type(tl.int64))
        target = tl.load(piece + 1).to(tl.pointer_type(tl.int64))
        # Both words of a load are inside, or neither is.
        num_words = tl.multiple_of(tl.load(piece + 2) // 8, 2)
        first = (chunk % chunks_a_piece).to(tl.int64) * CHUNK
        inside = first + place < num_words
        words = tl.load(tl.multiple_of(source, 16) + first + place, mask=inside)
        tl.store(tl.multiple_of(target, 16) + first + place, words, mask=inside)


def copy_pieces(pieces: torch.Tensor, max_bytes: int, num_programs: int = NUM_PROGRAMS) -> None:
    """Copies pieces that do not overlap, each of at most ``max_bytes``.

    ``pieces``: contiguous (N, 3) int64, N >= 1: source address, destination address, bytes; all
    multiples of ALIGNMENT. The addresses must be readable and writable from this GPU, which nobody
    checks: peers' memory needs to be mapped, or their access enabled.
    """
    assert pieces.is_contiguous() and pieces.shape[1:] == (3,), pieces.shape
    assert pieces.dtype == torch.int64, pieces.dtype
    chunks_a_piece = triton.cdiv(max_bytes, _CHUNK_WORDS * _WORD_BYTES)
    num_chunks = pieces.shape[0] * chunks_a_piece
    copy_pieces_kernel[(min(num_programs, num_chunks),)](
        pieces, num_chunks, chunks_a_piece, CHUNK=_CHUNK_WORDS, num_warps=8
    )


def rehearse_copy() -> None:
    """For ``list_launches``: a launch like any other, that copies nothing."""
    copy_pieces(torch.empty((1, 3), dtype=torch.int64, device="meta"), ALIGNMENT)


def copy_pieces_torch(pieces: torch.Tensor, max_bytes: int, num_programs: int = 1) -> None:
    """The twin of ``copy_pieces``, for addresses of host memory."""
    for source, target, num_bytes in pieces.tolist():
        assert num_bytes <= max_bytes, (num_bytes, max_bytes)
        ctypes.memmove(target, source, num_bytes)
