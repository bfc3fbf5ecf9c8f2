"""Locks of files: the system drops them when the process that holds them ends."""

from __future__ import annotations

import errno
from typing import IO

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]


def lock(file: IO[bytes], *, wait: bool) -> None:
    """Lock an open file for this process alone. `wait`: until the process that holds the lock drops it. Raises OSError:
    another process holds the lock, and `wait` is false; or the file system, or the operating system, has no locks.
    """
    if fcntl is None:
        raise OSError(errno.ENOLCK, "this system has no locks of files")
    fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
