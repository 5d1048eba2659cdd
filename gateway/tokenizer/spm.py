"""SentencePiece vocabularies as byte-pair models.

SentencePiece merges the neighbours whose joined piece has the best score; a byte-pair model merges
those whose pair comes first in a list. So the list is every way to split every piece in two, best
score first.
"""

from collections.abc import Collection, Mapping, Sequence

from tokenizers import models, normalizers

from gateway.tokenizer.vocabulary import SPM_SPACE


def build_spm_model(
    token_ids: Mapping[str, int],
    scores: Sequence[float],
    mergeable_ids: Collection[int],
    unknown_piece: str | None,
) -> models.BPE:
    """``scores`` by id. Only pieces in ``mergeable_ids`` come out of merges: never control tokens.
    Characters without a piece become byte tokens."""
    merges = [
        (-scores[token_ids[piece]], piece[:cut], piece[cut:])
        for piece in token_ids
        if token_ids[piece] in mergeable_ids
        for cut in range(1, len(piece))
        if piece[:cut] in token_ids and piece[cut:] in token_ids
    ]
    merges.sort(key=lambda merge: merge[0])
    return models.BPE(
        vocab=dict(token_ids),
        merges=[(left, right) for _, left, right in merges],
        unk_token=unknown_piece,
        fuse_unk=True,
        byte_fallback=True,
    )


def build_spm_normalizer(adds_space_prefix: bool) -> normalizers.Normalizer:
    """Writes spaces as SentencePiece does, with one more at the start of every stretch of text."""
    escape = normalizers.Replace(" ", SPM_SPACE)
    if not adds_space_prefix:
        return escape
    return normalizers.Sequence([normalizers.Prepend(SPM_SPACE), escape])
