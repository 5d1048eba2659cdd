"""The reasons that services give, and those of the tables in docs/api.md and docs/protocol.md."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("chassis", "decode_svc", "gateway", "kvtransfer", "prefill_svc", "worker")
# Their errors end a start or a command, or are written to a log: no peer ever meets them.
STAYS_IN_THE_PROCESS = {
    "chassis/download.py",
    "chassis/hub.py",
    "chassis/model_files.py",
    "chassis/model_store.py",
    "chassis/wheel.py",
    "gateway/worker_link.py",
    "worker/loaded.py",
}
ENVIRONMENT = ("BATON_", "GRPC_", "NIXL_", "OTEL_", "PROMETHEUS_", "TOKENIZERS_", "UCX_")


def words_of(path: Path) -> set[str]:
    """The texts of a module that look like a reason of several words."""
    constants = (n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Constant))
    texts = {constant.value for constant in constants if isinstance(constant.value, str)}
    words = {text for text in texts if re.fullmatch(r"[A-Z]+(?:_[A-Z0-9]+)+", text)}
    return {word for word in words if not word.startswith(ENVIRONMENT)}


def told_by(page: str, column: int) -> set[str]:
    """The reasons in a column of a page's error tables."""
    section = (ROOT / "docs" / page).read_text().split("\n## Errors\n")[1]
    rows = [line.split("|") for line in section.splitlines() if re.match(r"\| [A-Z`]", line)]
    return {word for row in rows for word in re.findall(r"\b[A-Z][A-Z_0-9]+\b", row[column])}


TOLD = told_by("api.md", 1) | told_by("protocol.md", 3)
SOURCES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def test_every_reason_that_crosses_a_call_is_in_a_table() -> None:
    crossing = [s for s in SOURCES if str(s.relative_to(ROOT)) not in STAYS_IN_THE_PROCESS]
    given = set().union(*map(words_of, crossing))
    assert len(given) > 40
    assert sorted(given - TOLD) == []


def test_every_reason_of_the_tables_is_given_somewhere() -> None:
    code = "\n".join(path.read_text() for path in SOURCES)
    assert [reason for reason in sorted(TOLD) if f'"{reason}"' not in code] == []
