"""Where a setting's value comes from, and what is refused."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from chassis.server import ServerSettings
from chassis.settings import SettingsError, group, load_settings, resolve_settings, setting


@dataclass(frozen=True, slots=True)
class Sample:
    """A service for tests."""

    server: ServerSettings = group(ServerSettings, port=7100)
    queue_limit: int = setting(256, help="requests that may wait", minimum=1)
    share: float = setting(0.9, help="100 % is 1", minimum=0, maximum=1)
    model: str | None = setting(None, help="model to serve")
    dtype: Literal["float32", "bfloat16"] = setting("float32", help="number format")
    peers: tuple[str, ...] = setting((), help="addresses")
    warm: bool = setting(True, help="warm up first")
    folder: Path = setting(Path("/var"), help="a folder")


def load(
    flags: dict[str, str | None] | None = None,
    environ: dict[str, str] | None = None,
    yaml: Path | None = None,
) -> Sample:
    given = {**(flags or {}), "config": str(yaml) if yaml else None}
    return resolve_settings(Sample, "gateway", given, environ or {})


@pytest.fixture
def yaml(tmp_path: Path) -> Path:
    path = tmp_path / "gateway.yaml"
    path.write_text("queue_limit: 3\nport: 4\npeers: [a, b]\nmodel:\nwarm: false\n")
    return path


def test_defaults_hold_and_a_group_can_change_those_of_its_members() -> None:
    settings = load()
    assert settings == Sample()
    assert (settings.server.port, settings.server.host) == (7100, "127.0.0.1")


def test_a_flag_wins_over_the_environment_and_that_over_the_file(yaml: Path) -> None:
    environ = {"BATON_GATEWAY_QUEUE_LIMIT": "2"}
    assert load(yaml=yaml).queue_limit == 3
    assert load(environ=environ, yaml=yaml).queue_limit == 2
    assert load({"queue_limit": "1"}, environ, yaml).queue_limit == 1


def test_the_file_may_be_named_by_the_environment(yaml: Path) -> None:
    settings = load(environ={"BATON_GATEWAY_CONFIG": str(yaml)})
    assert (settings.server.port, settings.peers, settings.warm) == (4, ("a", "b"), False)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("model", "m", "m"),
        ("model", "", None),
        ("dtype", "bfloat16", "bfloat16"),
        ("peers", "a:1, b:2,", ("a:1", "b:2")),
        ("warm", "off", False),
        ("share", "1e-1", 0.1),
        ("folder", "/tmp/x", Path("/tmp/x")),
    ],
)
def test_text_becomes_the_type_of_the_field(key: str, text: str, value: object) -> None:
    assert getattr(load({key: text}), key) == value


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"queue_limit": "many"}, "--queue-limit: 'many' is not a whole number"),
        ({"queue_limit": "0"}, "--queue-limit: 0 is below 1"),
        ({"share": "1.5"}, "--share: 1.5 is above 1"),
        ({"share": "nan"}, "--share: 'nan' is not a number"),
        ({"dtype": "int4"}, "--dtype: 'int4' is not one of float32, bfloat16"),
        ({"warm": "maybe"}, "--warm: 'maybe' is not true or false"),
        ({"port": "70000"}, "--port: 70000 is above 65535"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_bad_value_is_refused_by_name(flags: dict[str, str | None], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(flags)
    assert str(caught.value) == message


KUBERNETES = {
    "BATON_GATEWAY_SERVICE_HOST": "10.0.0.1",
    "BATON_GATEWAY_SERVICE_PORT": "7100",
    "BATON_GATEWAY_SERVICE_PORT_GRPC": "7100",
    "BATON_GATEWAY_PORT": "tcp://10.0.0.1:7100",
    "BATON_GATEWAY_PORT_7100_TCP": "tcp://10.0.0.1:7100",
    "BATON_GATEWAY_PORT_7100_TCP_PROTO": "tcp",
    "BATON_GATEWAY_PORT_7100_TCP_PORT": "7100",
    "BATON_GATEWAY_PORT_7100_TCP_ADDR": "10.0.0.1",
    "BATON_GATEWAY_METRICS_SERVICE_HOST": "10.0.0.2",
    "BATON_GATEWAY_METRICS_SERVICE_PORT": "8100",
    "BATON_GATEWAY_METRICS_PORT": "tcp://10.0.0.2:8100",
}


def test_what_kubernetes_adds_for_a_service_is_no_setting() -> None:
    assert load(environ=KUBERNETES) == Sample()
    assert load(environ={**KUBERNETES, "BATON_GATEWAY_PORT": "5"}).server.port == 5


@pytest.mark.parametrize(
    "environ",
    [
        {"BATON_GATEWAY_SERVICE_HOST": "10.0.0.1"},
        {"BATON_GATEWAY_PORT": "tcp://10.0.0.1:7100"},
        {**KUBERNETES, "BATON_GATEWAY_SERVICE_HOSTS": "10.0.0.1"},
        {**KUBERNETES, "BATON_GATEWAY_PORTS": "7100"},
    ],
    ids=lambda environ: list(environ)[-1],
)
def test_nothing_else_is_taken_for_what_kubernetes_adds(environ: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match=list(environ)[-1]):
        load(environ=environ)


def test_an_unknown_variable_is_refused() -> None:
    with pytest.raises(SettingsError, match="BATON_GATEWAY_QUEUE_LIMITS"):
        load(environ={"BATON_GATEWAY_QUEUE_LIMITS": "1"})


def test_variables_of_others_are_left_alone() -> None:
    environ = {"BATON_PREFILL_PORT": "1", "BATON_MODEL_DIR": "/x", "PATH": ""}
    assert load(environ=environ) == Sample()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("queue_limits: 1", "unknown setting queue_limits"),
        ("- 1", "expected a mapping"),
        ("a: [", "cannot read"),
        ("queue_limit: many", "queue_limit: 'many' is not a whole number"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(content)
    with pytest.raises(SettingsError) as caught:
        load(yaml=path)
    assert message in str(caught.value) and "bad.yaml" in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.yaml"):
        load(yaml=tmp_path / "nowhere.yaml")


def test_what_a_class_refuses_itself_is_a_settings_error() -> None:
    @dataclass(frozen=True, slots=True)
    class Picky:
        """Refuses."""

        low: int = setting(1, help="low")
        high: int = setting(2, help="high")

        def __post_init__(self) -> None:
            if self.low > self.high:
                raise ValueError("low is above high")

    with pytest.raises(SettingsError, match="low is above high"):
        resolve_settings(Picky, "gateway", {"low": "3"}, {})


def test_the_command_line_is_read() -> None:
    settings = load_settings(Sample, "gateway", ["--port", "1", "--warm=no", "--peers", "a"], {})
    assert (settings.server.port, settings.warm, settings.peers) == (1, False, ("a",))
    assert load_settings(Sample, "gateway", ["--warm"], {"BATON_GATEWAY_WARM": "no"}).warm


def test_an_unknown_flag_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load_settings(Sample, "gateway", ["--queue-limits", "1"], {})
    assert caught.value.code == 2
    usage, complaint = capsys.readouterr().err.splitlines()
    assert usage == "usage: python -m gateway [--SETTING VALUE ...]"
    assert "--queue-limits" in complaint


def test_a_bad_value_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load_settings(Sample, "gateway", [], {"BATON_GATEWAY_PORT": "x"})
    assert caught.value.code == 2
    assert "BATON_GATEWAY_PORT: 'x' is not a whole number" in capsys.readouterr().err


def test_help_names_every_setting_its_default_and_its_variable(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as caught:
        load_settings(Sample, "prefill", ["--help"], {})
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "python -m prefill_svc" in text
    names: list[Any] = ["host", "port", "drain_grace", "queue_limit", "share", "model", "peers"]
    for name in names:
        assert "--" + name.replace("_", "-") in text
        assert f"[BATON_PREFILL_{name.upper()}]" in text
    assert "--share NUMBER 100 % is 1 (default: 0.9)" in text
    assert "--dtype float32|bfloat16 number format" in text
    assert "--drain-grace NUMBER" in text and "(default: 30)" in text
    assert "--peers TEXT,... addresses (default: none)" in text
    assert "(default: 7100)" in text
