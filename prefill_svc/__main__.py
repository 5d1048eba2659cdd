"""``python -m prefill_svc``: one prefill worker."""

import logging
import sys
from functools import partial

from chassis.collector import collector_paused
from chassis.lifecycle import run
from chassis.logs import setup_logging
from chassis.settings import load_settings
from prefill_svc.config import PrefillSettings

log = logging.getLogger(__name__)


def main() -> int:
    """Runs until SIGTERM; returns the exit code."""
    settings = load_settings(PrefillSettings, "prefill")
    setup_logging("prefill", level=settings.server.log_level, form=settings.server.log_format)
    # Late: --help and wrong settings answer without loading torch.
    try:
        with collector_paused():
            from prefill_svc.server import serve
    except ModuleNotFoundError as error:
        log.error("cannot start: %s; get it with pip install 'baton-serve[engine]'", error)
        return 1

    return run(partial(serve, settings))


if __name__ == "__main__":
    sys.exit(main())
