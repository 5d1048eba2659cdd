"""Settings of a service: flag > environment > YAML file > default; unknown keys are refused.

    @dataclass(frozen=True, slots=True)
    class GatewaySettings:
        server: ServerSettings = group(ServerSettings, port=7100)
        queue_limit: int = setting(256, help="requests that may wait", minimum=1)

    settings = load_settings(GatewaySettings, "gateway")

The field above is ``--queue-limit``, ``BATON_GATEWAY_QUEUE_LIMIT`` and ``queue_limit:`` in YAML.
Fields of a group are named as if they were the outer class's own.
"""

import argparse
import os
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml

from chassis.service_links import without_service_links

T = TypeVar("T")


class SettingsError(ValueError):
    """A setting is unknown, malformed or out of range; the message names it and its source."""


@dataclass(frozen=True, slots=True)
class _Meta:
    help: str
    minimum: float | None
    maximum: float | None


def setting(
    default: T, *, help: str, minimum: float | None = None, maximum: float | None = None
) -> T:
    """A dataclass field that ``load_settings`` fills; bounds are inclusive."""
    made: T = field(default=default, metadata={"setting": _Meta(help, minimum, maximum)})
    return made


def group(cls: type[T], **defaults: object) -> T:
    """A field that holds another settings dataclass, with some of its defaults replaced."""
    made: T = field(default_factory=lambda: cls(**defaults), metadata={"group": defaults})
    return made


def load_settings(
    cls: type[T],
    service: str,
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> T:
    """The settings of this process; prints what is wrong and exits with 2 if there is an error.

    ``argv`` defaults to the command line, ``environ`` to the environment.
    """
    parser = _parser(cls, service)
    flags = parser.parse_args(argv)
    try:
        return resolve_settings(
            cls, service, vars(flags), os.environ if environ is None else environ
        )
    except SettingsError as error:
        parser.error(str(error))


def resolve_settings(
    cls: type[T], service: str, flags: Mapping[str, str | None], environ: Mapping[str, str]
) -> T:
    """Merges the sources; raises SettingsError. ``flags`` holds unparsed text, None where unset."""
    options = {option.name: option for option in _options(cls)}
    values: dict[str, object] = {}
    environ = without_service_links(environ)
    config = flags.get("config") or environ.get(_env_name(service, "config"))
    if config:
        for key, value in _read_yaml(config, options).items():
            values[key] = options[key].from_yaml(value, f"{config}: {key}")
    prefix = _env_name(service, "")
    for name, text in environ.items():
        key = name.removeprefix(prefix).lower()
        if not name.startswith(prefix) or key == "config":
            continue
        if key not in options:
            raise SettingsError(f"unknown setting {name} in the environment")
        values[key] = options[key].parse(text, name)
    for key, flag in flags.items():
        if key in options and flag is not None:
            values[key] = options[key].parse(flag, _flag_name(key))
    return _build(cls, values)


@dataclass(frozen=True, slots=True)
class _Option:
    name: str
    kind: Any
    default: object
    meta: _Meta

    def parse(self, text: str, source: str) -> object:
        try:
            value = _parse(self.kind, text)
        except ValueError:
            raise SettingsError(f"{source}: {text!r} is not {_describe(self.kind)}") from None
        return self._checked(value, source)

    def from_yaml(self, value: object, source: str) -> object:
        if isinstance(value, list):
            value = ",".join(str(item) for item in value)
        if value is None:
            return self.parse("", source)
        return self.parse(str(value), source)

    def _checked(self, value: object, source: str) -> object:
        low, high = self.meta.minimum, self.meta.maximum
        if isinstance(value, int | float):
            if low is not None and not value >= low:
                raise SettingsError(f"{source}: {value} is below {low:g}")
            if high is not None and not value <= high:
                raise SettingsError(f"{source}: {value} is above {high:g}")
        return value


def _options(cls: type[Any], overrides: Mapping[str, object] | None = None) -> Iterator[_Option]:
    hints = typing.get_type_hints(cls)
    for item in fields(cls):
        kind = hints[item.name]
        if is_dataclass(kind):
            yield from _options(cast(type[Any], kind), item.metadata.get("group"))
        else:
            default = (overrides or {}).get(item.name, item.default)
            yield _Option(item.name, kind, default, _meta(item))


def _meta(item: Field[Any]) -> _Meta:
    meta = item.metadata.get("setting")
    assert isinstance(meta, _Meta), f"field {item.name} is not declared with setting()"
    assert item.default is not MISSING, f"setting {item.name} has no default"
    return meta


def _build(
    cls: type[T], values: Mapping[str, object], overrides: Mapping[str, object] | None = None
) -> T:
    hints = typing.get_type_hints(cls)
    arguments: dict[str, object] = dict(overrides or {})
    for item in fields(cast(Any, cls)):
        kind = hints[item.name]
        if is_dataclass(kind):
            nested = cast(type[object], kind)
            arguments[item.name] = _build(nested, values, item.metadata.get("group"))
        elif item.name in values:
            arguments[item.name] = values[item.name]
    try:
        return cls(**arguments)
    except SettingsError:
        raise
    except ValueError as error:
        raise SettingsError(str(error)) from error


def _parse(kind: Any, text: str) -> object:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        inner = [argument for argument in arguments if argument is not types.NoneType]
        assert len(inner) == 1, f"only T | None is supported, not {kind}"
        return None if text == "" else _parse(inner[0], text)
    if origin is typing.Literal:
        if text not in arguments:
            raise ValueError(text)
        return text
    if origin is tuple:
        parts = [part.strip() for part in text.split(",")]
        return tuple(_parse(arguments[0], part) for part in parts if part)
    if kind is bool:
        return _parse_bool(text)
    if kind is Path:
        return Path(text).expanduser()
    assert kind in (int, float, str), f"settings of type {kind} are not supported"
    if kind is float and text.lower() in ("nan", "+nan", "-nan"):
        raise ValueError(text)
    return kind(text)


def _parse_bool(text: str) -> bool:
    words = {"true": True, "yes": True, "on": True, "1": True}
    words |= {"false": False, "no": False, "off": False, "0": False}
    if text.lower() not in words:
        raise ValueError(text)
    return words[text.lower()]


def _describe(kind: Any) -> str:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " or empty, ".join(_describe(a) for a in arguments if a is not types.NoneType)
    if origin is typing.Literal:
        return "one of " + ", ".join(str(argument) for argument in arguments)
    if origin is tuple:
        return "a comma-separated list"
    names = {int: "a whole number", float: "a number", bool: "true or false"}
    return names.get(kind, "a text")


def _read_yaml(path: str, options: Mapping[str, _Option]) -> dict[str, object]:
    try:
        document = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise SettingsError(f"cannot read {path}: {error}") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise SettingsError(f"{path}: expected a mapping of settings")
    if unknown := sorted(str(key) for key in document if key not in options):
        raise SettingsError(f"{path}: unknown setting {', '.join(unknown)}")
    return document


def _parser(cls: type[Any], service: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {service}" if service == "gateway" else f"python -m {service}_svc",
        # All of them would bury the one line that says what is wrong.
        usage="%(prog)s [--SETTING VALUE ...]",
        description=(cls.__doc__ or "").strip(),
        epilog="Order: flag, environment, YAML file, default. Seconds may have fractions.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config", metavar="FILE", help=f"YAML file of settings [{_env_name(service, 'config')}]"
    )
    for option in _options(cls):
        env = _env_name(service, option.name)
        text = f"{option.meta.help} (default: {_shown(option.default)}) [{env}]"
        parser.add_argument(
            _flag_name(option.name),
            metavar=_metavar(option.kind),
            # argparse formats help with %, so a literal one must be doubled.
            help=text.replace("%", "%%"),
            nargs="?" if option.kind is bool else None,
            const="true" if option.kind is bool else None,
        )
    return parser


def _metavar(kind: Any) -> str:
    """What a flag takes."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return next(_metavar(a) for a in arguments if a is not types.NoneType)
    if origin is typing.Literal:
        return "|".join(str(argument) for argument in arguments)
    if origin is tuple:
        return f"{_metavar(arguments[0])},..."
    return {int: "N", float: "NUMBER", bool: "true|false", Path: "PATH"}.get(kind, "TEXT")


def _shown(default: object) -> str:
    """A default, as a flag would take it."""
    if default in (None, ()):
        return "none"
    if isinstance(default, tuple):
        return ",".join(str(item) for item in default)
    return f"{default:g}" if isinstance(default, float) else str(default)


def _flag_name(key: str) -> str:
    return "--" + key.replace("_", "-")


def _env_name(service: str, key: str) -> str:
    return f"BATON_{service.upper()}_{key.upper()}"
