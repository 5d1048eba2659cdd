"""The variables with which Kubernetes tells every pod about the services of its namespace."""

import re
from collections.abc import Mapping

# After a service's name; a bare PORT is one only where it holds a URL, which no setting does.
_TAIL = re.compile(
    r"SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?", re.ASCII
)
_URL = re.compile(r"(tcp|udp|sctp)://.*")


def without_service_links(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what Kubernetes adds for services.

    A service called ``baton-gateway`` makes it add ``BATON_GATEWAY_SERVICE_HOST``, .._PORT and
    more, which would else be taken for settings. Without a service's host and port nothing
    counts as its: the variables come together.
    """
    hosts = [name for name in environ if name.endswith("_SERVICE_HOST")]
    services = [name.removesuffix("_SERVICE_HOST") for name in hosts]
    services = [service for service in services if f"{service}_SERVICE_PORT" in environ]
    return {
        name: value
        for name, value in environ.items()
        if not any(_is_link(name, value, service) for service in services)
    }


def _is_link(name: str, value: str, service: str) -> bool:
    if not name.startswith(f"{service}_"):
        return False
    tail = name.removeprefix(f"{service}_")
    if tail == "PORT":
        return _URL.fullmatch(value) is not None
    return _TAIL.fullmatch(tail) is not None
