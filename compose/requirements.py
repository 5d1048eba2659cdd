"""Prints what pyproject.toml depends on, one a line: `requirements.py [EXTRA...]`.

For images that install dependencies in a layer below the sources.
"""

import sys
import tomllib
from pathlib import Path


def requirements(extras: list[str]) -> list[str]:
    """The base requirements and those of the extras. KeyError for an unknown extra."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = list(project["dependencies"])
    for extra in extras:
        lines += project["optional-dependencies"][extra]
    return lines


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1:])))
