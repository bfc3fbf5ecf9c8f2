"""A store in the memory of this process: for releases that nobody publishes, such as those of an audit."""

from __future__ import annotations

from typing import NoReturn

from dpdist.errors import DataNotFound
from dpdist.storage.store import Store


class MemoryStore(Store):
    """A store whose files are byte strings of this process; it never travels to another."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._options, self._root, self._inner, self._parents = {}, "memory", "", False
        self.is_local = False

    def __reduce__(self) -> NoReturn:
        raise TypeError("a store in memory belongs to one process and is never pickled")

    def sizes(self, *, hidden: bool = False) -> dict[str, int]:
        """Names of all files below the store and their sizes in bytes, sorted by name."""
        top = f"{self._path('')}/"
        return {path.removeprefix(top): len(self._files[path]) for path in sorted(self._files) if path.startswith(top)}

    def read_bytes(self, name: str, *, most: int | None = None) -> bytes:
        """The content of a file. Raises DataNotFound: there is no such file."""
        try:
            return self._files[self._path(name)]
        except KeyError:
            raise DataNotFound(f"{self._shown(name)} does not exist") from None

    def delete(self, name: str) -> None:
        """Delete a file; nothing happens if there is none."""
        self._files.pop(self._path(name), None)

    def check_writable(self) -> None:
        """It always is."""

    def _shown(self, name: str) -> str:
        return self._path(name)

    def _has(self, path: str) -> bool:
        return path in self._files

    def _put(self, path: str, data: bytes, *, exclusive: bool) -> None:
        if not exclusive or path not in self._files:
            self._files[path] = data
