"""docs/operations.md says what the settings and the metrics are."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from chassis.settings import resolve_settings
from decode_svc.config import DecodeSettings
from gateway.config import GatewaySettings
from prefill_svc.config import PrefillSettings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text()
SETTINGS = {"gateway": GatewaySettings, "prefill": PrefillSettings, "decode": DecodeSettings}
WORKERS = ("prefill", "decode")
# Who shows the metrics that a package makes.
SHOWN_BY = {
    "gateway": ("gateway",),
    "prefill_svc": ("prefill",),
    "decode_svc": ("decode",),
    "worker": WORKERS,
    "chassis": ("gateway", *WORKERS),
}
METRIC_KINDS = ("counter", "gauge", "histogram", "observed_gauge", "observed_counter")


def rows(heading: str) -> list[list[str]]:
    """The cells of a section's table whose first cell has names in backticks."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def listed(cell: str) -> list[str]:
    return cell.replace("`", "").split(", ")


def services(cell: str) -> set[str]:
    groups = {"all": tuple(SETTINGS), "workers": WORKERS}
    return {service for word in listed(cell) for service in groups.get(word, (word,))}


def default_of(service: str, name: str) -> str:
    """A setting's default, as the table writes it."""
    settings: Any = resolve_settings(SETTINGS[service], service, {}, {})
    groups = [settings, settings.server, getattr(settings, "engine", settings.server)]
    value = next(getattr(group, name) for group in groups if hasattr(group, name))
    if isinstance(value, tuple):
        return ",".join(value)
    return "1 GiB" if value == 1 << 30 else f"{value:g}" if isinstance(value, float) else str(value)


@pytest.mark.parametrize("row", rows("Settings"), ids=lambda row: row[0])
def test_settings_have_the_defaults_of_the_table(row: list[str]) -> None:
    for name, default in zip(listed(row[0]), listed(row[2]), strict=True):
        owners = services(row[1])
        assert {default_of(service, name) for service in owners} == {default}, name


def made_metrics() -> Iterator[tuple[str, str]]:
    """Each metric, as (service, name with its labels)."""
    for package, owners in SHOWN_BY.items():
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and makes_metric(node.func):
                    yield from ((owner, spelled(node)) for owner in owners)


def makes_metric(function: ast.expr) -> bool:
    return isinstance(function, ast.Attribute) and function.attr in METRIC_KINDS


def spelled(call: ast.Call) -> str:
    """name{labels} of the call that makes a metric."""
    name = ast.literal_eval(call.args[0])
    if len(call.args) < 3:
        return str(name)
    if isinstance(call.args[2], ast.Name):
        # The one tuple of labels that several metrics share.
        return f"{name}{{gen_ai_request_model}}"
    labels = ast.literal_eval(call.args[2])
    return f"{name}{{{labels if isinstance(labels, str) else ','.join(labels)}}}"


def test_the_table_lists_the_metrics_of_each_service_with_their_labels() -> None:
    told = {
        (service, name)
        for names, where, _ in rows("Metrics")
        for name in listed(names)
        for service in services(where)
    }
    assert len(told) > 15
    assert told == set(made_metrics())


CODE = "\n".join(
    path.read_text()
    for package in (*SHOWN_BY, "engine", "kvtransfer")
    for path in (ROOT / package).rglob("*.py")
)
TROUBLES = PAGE.split("\n## When something is wrong\n")[1].split("\n## ")[0]
# What stands for something else in a quoted log line.
PLACEHOLDER = re.compile(r"\b(?:HOST:PORT|NAME|ID|REASON|N)\b|\.\.|\(or .*\)")


def test_quoted_log_lines_are_written_by_the_code() -> None:
    quoted = {text for text in re.findall(r"`([^`]+)`", TROUBLES) if " " in text}
    lines = {text for text in quoted if not text.startswith(("baton ", "--"))}
    assert len(lines) > 15
    pieces = {piece.strip(" :") for line in lines for piece in PLACEHOLDER.split(line)}
    assert [piece for piece in sorted(pieces) if piece not in CODE] == []


def test_the_reasons_that_it_names_are_given_by_the_code() -> None:
    reasons = set(re.findall(r"(?<![A-Z_])[A-Z]+(?:_[A-Z]+)+\b", TROUBLES))
    assert len(reasons) > 20
    not_ours = {"UCX_TLS", *(code.name for code in grpc.StatusCode)}
    assert [each for each in sorted(reasons - not_ours) if f'"{each}"' not in CODE] == []
