"""Runs a command that cannot outlive its parent: `python leash.py PARENT_PID COMMAND...`.

The kernel kills the command when the parent goes, however it goes (PR_SET_PDEATHSIG survives exec).
A launcher of its own instead of a `preexec_fn`: that would run Python between fork and exec of a
process whose gRPC threads may hold locks.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Replaces this process with the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # The parent may have gone before the call above: then no signal will ever come.
    if os.getppid() != parent:
        sys.exit(f"the parent process {parent} is gone")
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
