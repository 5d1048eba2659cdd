"""What the `baton` command tells a person when it cannot go on.

CommandError              exit 1  it was tried and failed
├── InputError            exit 2  the command line, a setting or the request is wrong: change it
└── UnreachableError      exit 3  nothing answers, or it is too busy: start it, or try again

An interrupted command exits 130.
"""


class CommandError(Exception):
    """Ends a command with one line on stderr, and a second one that says what to do about it."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def lines(self) -> list[str]:
        """The lines to print."""
        return [f"baton: {self.message}"] + ([f"  {self.hint}"] if self.hint else [])


class InputError(CommandError):
    """The command line, a setting or the request itself is wrong."""

    exit_code = 2


class UnreachableError(CommandError):
    """Nothing answers at the address, or the server refuses work for now."""

    exit_code = 3
