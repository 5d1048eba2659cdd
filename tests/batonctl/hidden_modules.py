"""A Python whose installed modules are fewer: what a base install is like."""

import os
from pathlib import Path

_SITE = """
import importlib.machinery

real = importlib.machinery.PathFinder.find_spec


def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in {hidden!r} else real(name, path, target)


importlib.machinery.PathFinder.find_spec = find_spec
"""


def without(folder: Path, *modules: str) -> dict[str, str]:
    """The environment of processes that find none of these modules."""
    (folder / "sitecustomize.py").write_text(_SITE.format(hidden=modules))
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
