"""pyproject.toml asks for what the code imports, where it is imported, and for nothing else."""

import ast
import re
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
BASE = ("protos", "chassis", "modelfiles", "gateway", "examples")
# The command looks at the engine's parts where they are installed.
ENGINE = ("engine", "kvtransfer", "worker", "prefill_svc", "decode_svc", "batonctl")
# Commands, plug-ins, and types for those who import the stubs.
NOT_IMPORTED = re.compile(
    "types-.*|mypy.*|ruff|pre-commit|import-linter|grpcio-tools|pytest-.*|baton-serve"
)


def names(requirements: Iterable[str]) -> set[str]:
    """The distributions, without ranges and extras."""
    found = {re.split(r"[\[<>=]", line)[0] for line in requirements}
    return {name for name in found if not NOT_IMPORTED.fullmatch(name)}


def imported(*folders: str) -> dict[str, set[str]]:
    """Outside modules that are imported there, and the distributions that have such a module.

    Without those of extras that are not installed here (llama.cpp).
    """
    ours = {path.name for path in ROOT.iterdir()} | {"baton"}
    found = {}
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for module in _modules(ast.parse(path.read_text())):
                if module not in ours and module in _distributions():
                    found[module] = _distributions()[module]
    return found


def _modules(tree: ast.Module) -> Iterable[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module.partition(".")[0]


@cache
def _distributions() -> dict[str, set[str]]:
    return {
        module: {name.lower().replace("_", "-") for name in distributions}
        for module, distributions in packages_distributions().items()
    }


def test_what_is_imported_is_asked_for_where_it_is_imported() -> None:
    base = names(PROJECT["dependencies"])
    # Files that only a GPU runs ask for "cuda", and lie among those of the engine.
    engine = base | names(EXTRAS["engine"]) | names(EXTRAS["cuda"])
    everything = engine | names(EXTRAS["bench"]) | names(EXTRAS["dev"])
    for folders, asked in ((BASE, base), (ENGINE, engine), (("bench", "tests"), everything)):
        lacking = {module for module, found in imported(*folders).items() if not found & asked}
        assert lacking == set(), folders


def test_what_is_asked_for_is_imported_there() -> None:
    rows = {
        "base": (PROJECT["dependencies"], (*BASE, "batonctl")),
        "engine": (EXTRAS["engine"], ENGINE),
        "dev": (EXTRAS["dev"], ("tests", "engine/kernels/cuda")),
    }
    for extra, (requirements, folders) in rows.items():
        used = set().union(*imported(*folders).values())
        assert names(requirements) - used == set(), extra


def test_every_requirement_has_its_exact_version() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in lines}
    for requirements in (PROJECT["dependencies"], *EXTRAS.values()):
        asked = {re.split(r"[\[<>=]", line)[0] for line in requirements} - {"baton-serve"}
        assert asked - pinned == set()
