"""The `baton` command."""

import sys

from batonctl.cli.app import app
from batonctl.errors import CommandError


def main() -> None:
    """Runs a command; errors are lines on stderr and an exit code, never a traceback."""
    try:
        app(prog_name="baton")
    except CommandError as error:
        print("\n".join(error.lines()), file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
