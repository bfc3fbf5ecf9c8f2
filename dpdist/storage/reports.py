"""Files with the details of internal errors, for their owner alone: written by any command, removed by later ones."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

REPORT = "dpdist-error-"
"""How their names begin, in the folder for temporary files."""

KEPT = 7 * 24 * 3600
"""Seconds after which they are deleted."""


def write_report(details: str) -> str:
    """Write details to a file of mode 0600; return its path, or why there is none. Older files are deleted."""
    sweep_reports()
    try:
        handle, path = tempfile.mkstemp(prefix=REPORT, suffix=".txt")
        with os.fdopen(handle, "w") as file:
            file.write(details)
    except OSError as error:
        return f"no file, because none could be written ({error.strerror})"
    return path


def sweep_reports(*, older: float = KEPT) -> list[str]:
    """Delete this user's files with details of internal errors; return their names."""
    swept = []
    for path in Path(tempfile.gettempdir()).glob(f"{REPORT}*.txt"):
        with suppress(OSError):
            found = path.lstat()
            if found.st_uid == os.geteuid() and time.time() - found.st_mtime >= older:
                path.unlink()
                swept.append(str(path))
    return swept
