"""Files of an evaluation: readable by their owner alone, and whole or not there.

They are in a folder of mode 0700, or below a prefix of an S3 bucket that somebody has called confidential.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dpdist.errors import DataNotFound, OutputUnwritable
from dpdist.storage import local
from dpdist.storage.store import Store


class Folder:
    """A folder of this machine, for pages."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, content: bytes, *, advice: str) -> str:
        """Write or replace a file (`write_private`); its address."""
        write_private(self.path / name, content, advice=advice)
        return str(self.path / name)

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if none exists."""
        path = self.path / name
        return path.read_bytes() if path.is_file() else None

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        with suppress(FileNotFoundError):
            (self.path / name).unlink()

    def hidden(self, name: str) -> str:
        """The name of a file that is not for people, such as one that is unfinished."""
        return f".{name}"

    def address(self, name: str) -> str:
        """Where a worker process finds a file."""
        return str((self.path / name).absolute())


class BucketPrefix:
    """A prefix of a confidential bucket, for pages; methods as of `Folder`."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def write(self, name: str, content: bytes, *, advice: str) -> str:
        """Write or replace a file; its address."""
        self.store.write_bytes(name, content)
        return f"{self.store.uri}/{name}"

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if none exists."""
        try:
            return self.store.read_bytes(name) if self.store.exists(name) else None
        except DataNotFound:  # somebody has just deleted it
            return None

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        self.store.delete(name)

    def hidden(self, name: str) -> str:
        """The name of a file that is not for people: no name in a store begins with a dot."""
        return f"unfinished.{name}"

    def address(self, name: str) -> str:
        """Where a worker process finds a file."""
        return self.store.address(name)


Pages = Folder | BucketPrefix


def pages_at(place: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> Pages:
    """Where pages are written: a folder, or an ``s3://`` prefix."""
    if is_remote(place):
        return BucketPrefix(Store(place, storage_options))
    return Folder(Path(place))


def is_remote(place: str | os.PathLike[str]) -> bool:
    """Whether a place is a prefix of object storage."""
    return os.fspath(place).startswith(("s3://", "s3a://"))


def write_private(path: Path, content: bytes, *, advice: str) -> None:
    """Replace a file of mode 0600, in folders of mode 0700. Raises OutputUnwritable, with the `advice`."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        local.write(str(path), content, exclusive=False, mode=0o600)
    except OSError as error:
        raise OutputUnwritable(f"{path.parent} cannot be written ({error.strerror}): {advice}") from None
