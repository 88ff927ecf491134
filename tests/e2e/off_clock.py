"""`python -m tests.e2e.off_clock run …`: the operator, on a machine whose clock is as many seconds off as a file says, from when it says so."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import time_machine

from gpupartition.__main__ import main

if TYPE_CHECKING:
    from time_machine import Traveller

FILE: Final = "OFF_CLOCK"
"""Environment variable: path of the file."""
LOOK_SECONDS: Final = 0.02


def keep_off(clock: Traveller, file: Path) -> None:
    """Move the clock whenever the file says something else. Monotonic clocks stay what they are, as on a machine whose clock is set."""
    off = 0.0
    while True:
        said = float(file.read_text())
        if said != off:
            clock.shift(said - off)
            off = said
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    with time_machine.travel(time.time(), tick=True) as traveller:
        threading.Thread(target=keep_off, args=(traveller, Path(os.environ[FILE])), daemon=True).start()
        sys.exit(main())
