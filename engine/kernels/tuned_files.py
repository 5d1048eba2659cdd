"""Where what was measured on this machine is kept: in the user's cache, a file a processor."""

import json
import os
import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def tuned_file(operation: str, processor: str) -> Path:
    """In BATON_KERNEL_DIR, by default ``~/.cache/baton/kernels``: a home may serve many of them."""
    # Without a home there is no such file, and no reason to fail either.
    folder = os.path.expanduser(os.environ.get("BATON_KERNEL_DIR") or "~/.cache/baton/kernels")
    slug = re.sub(r"[^a-z0-9]+", "-", processor.lower()).strip("-")
    return Path(folder) / f"{operation}-{slug}.json"


def write_tuned(path: Path, facts: Mapping[str, Any]) -> Path:
    """At once or not at all; OSError where it cannot."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(facts, indent=2) + "\n")
    return part.replace(path)


def baton_version() -> str:
    try:
        return version("baton-serve")
    except PackageNotFoundError:
        return "not installed"
