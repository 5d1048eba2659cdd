"""What the documents name exists: links, settings, metrics, commands, spans, rules."""

import re
from pathlib import Path

import pytest
import typer.core

from batonctl.cli.app import app
from chassis.settings import SettingsError, resolve_settings
from decode_svc.config import DecodeSettings
from gateway.config import GatewaySettings
from prefill_svc.config import PrefillSettings

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PACKAGES = (
    "batonctl", "chassis", "decode_svc", "engine", "gateway", "kvtransfer", "prefill_svc", "worker",
)  # fmt: skip
SOURCES = {
    path: path.read_text() for package in PACKAGES for path in (ROOT / package).rglob("*.py")
}
CODE = "\n".join(SOURCES.values())
SETTINGS = {"gateway": GatewaySettings, "prefill": PrefillSettings, "decode": DecodeSettings}

PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def is_setting(name: str) -> bool:
    """Whether a BATON_* variable is one, whatever its value."""
    service = name.split("_")[1].lower()
    if service not in SETTINGS:
        return f'"{name}"' in CODE
    try:
        resolve_settings(SETTINGS[service], service, {}, {name: "?"})
    except SettingsError as error:
        return "unknown setting" not in str(error)
    return True


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@PAGE
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)]+)\)", page.read_text())
    for link in (link for link in links if "://" not in link):
        target, _, anchor = link.partition("#")
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), link
        assert there.is_relative_to(ROOT), link
        assert not anchor or anchor in anchors(there), link


@PAGE
def test_environment_names_are_settings(page: Path) -> None:
    names = set(re.findall(r"\bBATON_[A-Z][A-Z_]*[A-Z]\b(?!_)", page.read_text()))
    services = {"BATON_GATEWAY", "BATON_PREFILL", "BATON_DECODE"}
    assert [name for name in names - services if not is_setting(name)] == []


@PAGE
def test_metrics_exist(page: Path) -> None:
    names = set(re.findall(r"`((?:baton|gen_ai)_[a-z_]+)", page.read_text()))
    assert [name for name in names if f'"{name}"' not in CODE] == []


@PAGE
def test_commands_exist(page: Path) -> None:
    commands = {c.name or c.callback.__name__ for c in app.registered_commands if c.callback}
    commands |= {str(group.name) for group in app.registered_groups}
    named = set(re.findall(r"(?:`|^|/)baton ([a-z]+)", page.read_text(), re.MULTILINE))
    assert named <= commands


@PAGE
def test_flags_of_commands_exist(page: Path) -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    for name, rest in re.findall(r"\bbaton ([a-z]+)\b([^`#\n]*)", page.read_text()):
        if name in group.commands:
            known = {flag for param in group.commands[name].params for flag in param.opts}
            assert set(re.findall(r"--[a-z-]+", rest)) <= known, (name, rest)


def test_every_command_is_described_in_the_readme_or_operations() -> None:
    text = (ROOT / "README.md").read_text() + (ROOT / "docs" / "operations.md").read_text()
    commands = [c.name or c.callback.__name__ for c in app.registered_commands if c.callback]
    assert [name for name in commands if f"baton {name}" not in text] == []


def test_the_tree_of_spans_is_the_one_that_the_code_makes() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    tree = text.split("## Telemetry")[1].split("```")[1]
    told = set(re.findall(r"[├└]─ ([\w.]+(?: leg)?)", tree)) - {"Prefill"}
    made = set(re.findall(r'start_(?:span|leg)\(\s*"([^"]+)"', CODE))
    assert told == made


def test_rules_that_the_code_cites_exist() -> None:
    rules = set(
        re.findall(r"^(\d\.\d) ", (ROOT / "docs" / "protocol.md").read_text(), re.MULTILINE)
    )
    cited = set(re.findall(r"[Pp]rotocol (\d\.\d)", CODE))
    protos = "\n".join(path.read_text() for path in (ROOT / "protos").rglob("*.proto"))
    cited |= set(re.findall(r"rule (\d\.\d)", protos))
    assert len(cited) > 15
    assert cited <= rules
