"""``python -m gateway``: the public door, in one process or several."""

import sys
from functools import partial

from chassis.lifecycle import run
from chassis.logs import setup_logging
from chassis.settings import load_settings
from gateway.config import GatewaySettings


def main() -> int:
    """Runs until SIGTERM; returns the exit code."""
    settings = load_settings(GatewaySettings, "gateway")
    setup_logging("gateway", level=settings.server.log_level, form=settings.server.log_format)
    # Late: --help and wrong settings answer at once.
    from gateway.server import serve
    from gateway.supervisor import supervise

    return run(partial(supervise if settings.workers > 1 else serve, settings))


if __name__ == "__main__":
    sys.exit(main())
