"""Digests as people read them."""


def short_digest(digest: bytes) -> str:
    """Enough of a digest to tell a few apart; "none" for an empty one."""
    return digest.hex()[:12] or "none"
