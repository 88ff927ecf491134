"""Become another program that cannot outlive the one that started it: `python leash.py PARENT_PID COMMAND ...`.

The kernel sends SIGKILL to a leashed program as soon as its parent is gone, however that died; `kill -9` included. The leash
survives exec, which is why this wrapper can become the program instead of watching it.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    """Put on the leash, then become the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed: the testbed needs Linux")
    if os.getppid() != parent:  # it died before the leash was on
        sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606 - the command comes from the testbed itself


if __name__ == "__main__":
    main()
