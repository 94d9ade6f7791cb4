"""What processes of a test do wrong, or say."""

import os
import signal
import sys

from regard.errors import ConfigError
from regard.logging import log_info, log_warning
from regard.training.distributed import joined


def fail_on_the_second() -> None:
    with joined("cpu") as group:
        if group.rank == 1:
            raise ConfigError("the second process says no")
        group.wait()


def die_on_the_second() -> None:
    with joined("cpu") as group:
        if group.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        group.wait()


def warn(text: str) -> list[int]:
    with joined("cpu") as group:
        log_info("information")
        log_warning(text)
        if group.rank:
            print("a line of a library", file=sys.stderr)
        return group.gather(group.rank)
