"""Prints what pyproject.toml depends on, one a line: `requirements.py [EXTRA...]`.

For images that install dependencies in a layer below the sources.
"""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any


def requirements(extras: list[str]) -> list[str]:
    """The base requirements and those of the extras. KeyError for an unknown extra."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = list(project["dependencies"])
    for extra in extras:
        lines += _extra(project, extra)
    return lines


def _extra(project: dict[str, Any], extra: str) -> list[str]:
    """Those of an extra, and of the extras of ours that it names."""
    lines = []
    for line in project["optional-dependencies"][extra]:
        own = re.fullmatch(rf"{project['name']}\[(\w+)\]", line)
        lines += [line] if own is None else _extra(project, own[1])
    return lines


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1:])))
