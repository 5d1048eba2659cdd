"""The engine extra: what workers need, and client and gateway do not."""

from importlib.util import find_spec

from batonctl.errors import CommandError

ENGINE_PARTS = ("torch", "nixl_cu13")
# As good for an install from a checkout: pip then adds what the extra has, and nothing else.
INSTALL_ENGINE = "pip install 'baton-serve[engine]'"


def missing_engine_parts() -> list[str]:
    """The modules that are not installed."""
    return [part for part in ENGINE_PARTS if find_spec(part) is None]


def require_engine(what: str = "workers cannot run here") -> None:
    """CommandError, saying ``what``, without the extra: asked before anything starts."""
    if missing := missing_engine_parts():
        raise CommandError(f"{what} without {', '.join(missing)}", hint=INSTALL_ENGINE)
