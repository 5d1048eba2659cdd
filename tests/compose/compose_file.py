"""The compose file as Compose sees it: variables filled in, anchors merged."""

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "compose"
_VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^}]*))?\}")


def read_env(path: Path = FOLDER / ".env") -> dict[str, str]:
    """The variables of an env file."""
    lines = [line.strip() for line in path.read_text().splitlines()]
    pairs = [line.split("=", 1) for line in lines if line and not line.startswith("#")]
    return dict(pairs)


def load_compose(name: str = "compose.yaml") -> dict[str, Any]:
    """The file with .env filled in. KeyError for a variable without value and default."""
    env = read_env()

    def fill(match: re.Match[str]) -> str:
        name, default = match.groups()
        return env[name] if default is None else env.get(name, default)

    text = _VARIABLE.sub(fill, (FOLDER / name).read_text())
    document: dict[str, Any] = yaml.safe_load(text)
    return document


def merge(base: Any, over: Any) -> Any:
    """What Compose makes of two files: mappings are merged, lists joined, all else replaced."""
    if isinstance(base, dict) and isinstance(over, dict):
        both = {key: merge(base[key], over[key]) for key in base.keys() & over.keys()}
        return base | over | both
    if isinstance(base, list) and isinstance(over, list):
        return base + over
    return over


def seconds(text: str) -> float:
    """A duration such as 40s or 1m30s."""
    units = {"h": 3600.0, "m": 60.0, "s": 1.0}
    parts = re.findall(r"([\d.]+)([hms])", text)
    assert "".join(number + unit for number, unit in parts) == text, text
    return sum(float(number) * units[unit] for number, unit in parts)
