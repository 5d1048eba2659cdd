"""One line per log record, with the request it belongs to: key=value, or JSON."""

import json
import logging
import sys
from datetime import UTC, datetime

from chassis.request_id import current_request_id

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def setup_logging(service: str, *, level: str = "info", form: str = "text") -> None:
    """Sends all records of this process to stderr. ``form`` is "text" (key=value) or "json".

    Raises ValueError for an unknown level or form. Extra facts travel as
    ``log.info("text", extra={"fields": {"attempt": "..."}})``.
    """
    if level not in LEVELS:
        raise ValueError(f"log level must be one of {', '.join(LEVELS)}, not {level!r}")
    if form not in ("text", "json"):
        raise ValueError(f"log format must be text or json, not {form!r}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(service) if form == "json" else TextFormatter(service))
    logging.basicConfig(level=LEVELS[level], handlers=[handler], force=True)
    # gRPC reports each broken stream through asyncio; our own interceptors say what matters.
    logging.getLogger("grpc").setLevel(logging.WARNING)


class TextFormatter(logging.Formatter):
    """``2026-01-02T03:04:05.678Z INFO gateway msg="..." request=... logger=...``"""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        facts = _facts(record)
        head = f"{_timestamp(record)} {record.levelname} {self._service}"
        pairs = " ".join(f"{key}={_quoted(value)}" for key, value in facts.items())
        line = f"{head} {pairs}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """The same facts as one JSON object; a traceback is one of its strings."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        facts: dict[str, object] = {
            "time": _timestamp(record),
            "level": record.levelname,
            "service": self._service,
            **_facts(record),
        }
        if record.exc_info:
            facts["exception"] = self.formatException(record.exc_info)
        return json.dumps(facts, default=str)


def _facts(record: logging.LogRecord) -> dict[str, object]:
    facts: dict[str, object] = {"msg": record.getMessage()}
    if request_id := current_request_id():
        facts["request"] = request_id
    fields = getattr(record, "fields", None)
    if isinstance(fields, dict):
        facts.update(fields)
    facts["logger"] = record.name
    return facts


def _timestamp(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{int(record.msecs):03d}Z"


def _quoted(value: object) -> str:
    text = str(value)
    if text and not any(char in text for char in ' "=\n\r\t\\'):
        return text
    return json.dumps(text, ensure_ascii=False)
