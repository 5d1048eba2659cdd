"""Processes that cannot outlive the one that started them."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """From now on the kernel kills this process, even one that is stopped, when ``parent`` goes.

    To the kernel the parent is the thread that started this process: it must stay.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # It may have gone before: then no signal will ever come.
    if os.getppid() != parent:
        os._exit(1)
