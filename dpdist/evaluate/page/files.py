"""Files of an evaluation: readable by their owner alone, and whole or not there."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from dpdist.errors import OutputUnwritable


def write_private(path: Path, content: bytes, *, advice: str) -> None:
    """Write or replace a file of mode 0600 in one step; missing folders are made with mode 0700. Raises
    OutputUnwritable, with the `advice`: the folder cannot be written.
    """
    temporary = None
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary)
        raise OutputUnwritable(f"{path.parent} cannot be written ({error.strerror}): {advice}") from None
