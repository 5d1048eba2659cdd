"""docs/api.md says what the protos and the gateway's refusals say."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from chassis.reasons import Reason

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "api.md").read_text()
PROTOS = ROOT / "protos" / "baton" / "v1"
# Where an error that a client of the gateway sees is made.
CLIENT_FACING = (
    "gateway/admission.py",
    "chassis/complaints.py",
    "gateway/generation.py",
    "gateway/orchestrator.py",
    "gateway/servicer.py",
    "chassis/request_interceptor.py",
)


def _elements() -> Iterator[tuple[str, str]]:
    """Each method, field and enum value of the public protos, with its row in the page."""
    for name in ("gateway.proto", "generation.proto"):
        comment: list[str] = []
        for line in map(str.strip, (PROTOS / name).read_text().splitlines()):
            if line.startswith("//"):
                comment.append(line.removeprefix("//").strip())
                continue
            text = " ".join(comment)
            if method := re.match(r"rpc (\w+)\(\w+\) returns \(([\w ]+)\)", line):
                yield method[1], f"| `{method[1]}` | `{method[2]}` | {text} |"
            elif field := re.match(r"([\w.<>, ]+?) (\w+) = \d+;", line):
                yield field[2], f"| `{field[2]}` | `{field[1]}` | {text} |"
            elif value := re.match(r"(\w+) = \d+;", line):
                yield value[1], f"| `{value[1]}` | {text} |"
            elif message := re.match(r"(?:message|enum) (\w+) {", line):
                yield message[1], f"### {message[1]}\n\n{text}\n"
            comment = []


@pytest.mark.parametrize(("name", "row"), list(_elements()))
def test_every_element_of_the_protos_is_described_in_its_own_words(name: str, row: str) -> None:
    assert row in PAGE, name


def test_every_reason_that_a_client_meets_is_explained() -> None:
    literals = {
        reason
        for path in CLIENT_FACING
        for reason in re.findall(r'reason="([A-Z_0-9]+)"', (ROOT / path).read_text())
    }
    explained = set(re.findall(r"^\| `([A-Z_0-9]+)` \| [^|]* \| [^|]* \|$", PAGE, re.MULTILINE))

    assert {reason.value for reason in Reason} | literals <= explained
