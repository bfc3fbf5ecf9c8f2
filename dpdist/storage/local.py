"""Files of this machine: whole or not at all, locked while they are written, swept when their process has ended.

Reports of internal errors are such files, for their owner alone: any command writes them, later ones remove them.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

from dpdist.errors import DataNotFound, VerificationFailed

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]

PROBE = ".probe-"
"""How the names of files begin that only try whether a place can be written."""

_UNFINISHED = re.compile(r"\..+\.[0-9a-f]{32}")

REPORT = "dpdist-error-"
"""How their names begin, in the folder for temporary files."""

KEPT = 7 * 24 * 3600
"""Seconds after which they are deleted."""


def lock(file: IO[bytes], *, wait: bool) -> None:
    """Lock an open file for this process alone; with `wait`, once the process that holds the lock drops it. Raises
    OSError: another process holds it, and `wait` is false; or the file system, or the operating system, has no locks.
    """
    if fcntl is None:
        raise OSError(errno.ENOLCK, "this system has no locks of files")
    fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


def sizes(top: str, *, links: bool) -> Iterator[tuple[str, int]]:
    """Files below a folder, with `links` also links to folders; skips those that another process removes meanwhile."""

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise error

    for folder, folders, names in os.walk(top, onerror=refuse):
        linked = [name for name in folders if links and os.path.islink(os.path.join(folder, name))]
        for path in (os.path.join(folder, name) for name in names + linked):
            with suppress(FileNotFoundError):
                yield path, (os.lstat if links else os.stat)(path).st_size


def read(path: str, shown: str, most: int | None) -> bytes:
    """Read a whole file; opening anything else does not wait for whoever writes it."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise DataNotFound(f"cannot read {shown}: it is no regular file")
        if most is None:
            return file.read()
        require_short(shown, found.st_size, most)
        return file.read(most)


def require_short(shown: str, size: int, most: int) -> None:
    """Refuse a file that is longer than what is expected at most."""
    if size > most:
        raise VerificationFailed(f"{shown} has {size:,} bytes, and {most:,} are expected at most: do not use it")


def write(path: str, data: bytes, *, exclusive: bool, mode: int = 0o666) -> None:
    """Write a whole file, on the disk before it is visible; if `exclusive`, leave one that is there as it is."""
    while not _written(path, data, exclusive, mode):
        pass  # another run swept the file before it was locked


def _written(path: str, data: bytes, exclusive: bool, mode: int) -> bool:
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{uuid.uuid4().hex}")
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            with suppress(OSError):  # a file system without locks
                lock(file, wait=True)  # for `sweep`: this process still writes it
            if not os.path.exists(temporary):
                return False
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            if exclusive:
                with suppress(FileExistsError):
                    os.link(temporary, path)
            else:
                os.replace(temporary, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
    flush(Path(folder))
    return True


def sweep(path: str) -> bool:
    """Delete a probe, or a file that was not finished by a process that has ended; whether it was one.

    The system drops the lock of a process that is killed. The file is deleted under the lock: a writer that gets it
    afterwards sees that its file is gone.
    """
    name = os.path.basename(path)
    if not name.startswith(PROBE) and not _UNFINISHED.fullmatch(name):
        return False
    with ExitStack() as stack:
        try:
            if not stat.S_ISREG(os.lstat(path).st_mode):  # opening a pipe would wait for its writer
                return False
            lock(stack.enter_context(open(path, "rb")), wait=False)
        except OSError:
            return False
        with suppress(FileNotFoundError):
            os.unlink(path)
    return True


def flush(folder: Path) -> None:
    """Make new entries of a folder survive a power failure, where the system supports it."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_report(details: str) -> str:
    """Write details to a file of mode 0600; return its path, or why none exists. Older files are deleted."""
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
