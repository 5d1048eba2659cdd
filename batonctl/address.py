"""Addresses of services as people write them."""

import re

from batonctl.errors import InputError

_ADDRESS = re.compile(r"(?:dns:///)?(?:\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):(\d{1,5})")


def require_address(text: str) -> str:
    """The address; InputError where nobody could ever listen at it."""
    match = _ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match[1]) <= 65535:
        raise InputError(
            f"{text!r} is no address", hint="write HOST:PORT, for example 127.0.0.1:7100"
        )
    return text
