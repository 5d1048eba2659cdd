"""The `baton` command."""

import os
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
    except Exception as error:
        if os.environ.get("BATON_DEBUG"):
            raise
        print(f"baton: {type(error).__name__}: {error}", file=sys.stderr)
        print("  this is a bug in Baton; BATON_DEBUG=1 shows where", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
