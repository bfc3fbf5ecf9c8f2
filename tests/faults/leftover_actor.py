"""The command line of dpdist, killed just before it renames, links or deletes a file.

    leftover_actor.py EVENT PATTERN release SPEC ...

EVENT is an audit event of Python (``os.rename``, ``os.remove``, ``os.mkdir``), PATTERN a regular expression for the
name of the file. ``full:os.mkdir`` makes the system say that the disk is full instead.
"""

import errno
import os
import re
import signal
import sys
from typing import Any

from dpdist import cli


def arm(event: str, pattern: str) -> None:
    """Let this process die, or meet a full disk, at the event."""
    full, name = event.startswith("full:"), event.removeprefix("full:")

    def audit(found: str, arguments: tuple[Any, ...]) -> None:
        if found == name and re.fullmatch(pattern, os.path.basename(str(arguments[0]))):
            if full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(audit)


if __name__ == "__main__":
    arm(sys.argv.pop(1), sys.argv.pop(1))
    cli.main()
