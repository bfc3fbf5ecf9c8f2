"""An anchor: the newest head of each journal, kept outside of the database that it is about.

A database that was restored from an old backup agrees with itself, and would charge again what was spent since. Its
anchor has seen more. It is a folder or an S3 prefix (``DPDIST_LEDGER_ANCHOR``) that whoever can write to the database
should not be able to change: another machine's, or a bucket with versions or a lock. It is written after every
transition. A crash in between leaves it behind the database, never ahead: a journal may go on from its mark.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from dpdist.errors import DataNotFound, LedgerError

if TYPE_CHECKING:
    from dpdist.storage.store import Store

VARIABLE: Final = "DPDIST_LEDGER_ANCHOR"


@dataclass(frozen=True)
class Mark:
    """How far a journal has been seen."""

    length: int  # its entries
    head: str  # the digest of the last of them


class Anchor:
    """The marks of the data sets of a ledger. `uri`: a local folder or ``s3://bucket/prefix``."""

    def __init__(self, uri: str) -> None:
        from dpdist.storage.store import Store

        self._store: Store = Store(uri)

    @classmethod
    def find(cls, uri: str | None = None) -> Anchor | None:
        """The anchor at `uri`, or at the address in ``DPDIST_LEDGER_ANCHOR``; None without one."""
        address = os.environ.get(VARIABLE, "") if uri is None else uri
        return cls(address) if address else None

    def read(self, dataset: str) -> Mark:
        """The mark of a data set. Raises LedgerError: none exists, or it is not one of this data set;
        StorageUnavailable: the storage does not answer.
        """
        try:
            body = json.loads(self._store.read_bytes(_name(dataset)))
            if body["dataset"] == dataset:
                return Mark(int(body["length"]), str(body["head"]))
        except DataNotFound:
            raise LedgerError(
                f"no anchor of data set {dataset!r} in {self._store.uri}: where nobody removed it, set one with "
                f"dpdist ledger anchor {dataset}"
            ) from None
        except (ValueError, KeyError, TypeError):
            pass
        raise LedgerError(
            f"the anchor of data set {dataset!r} in {self._store.uri} is damaged: restore it from an earlier version"
        )

    def is_set(self, dataset: str) -> bool:
        """Whether there is a mark of a data set. Raises StorageUnavailable: the storage does not answer."""
        return self._store.exists(_name(dataset))

    def write(self, dataset: str, mark: Mark) -> None:
        """Set the mark of a data set. Raises OutputUnwritable, OutOfDisk, StorageUnavailable: it cannot be written."""
        self._store.write_bytes(_name(dataset), json.dumps({"dataset": dataset, **asdict(mark)}).encode())

    def begin(self, dataset: str, mark: Mark) -> None:
        """Set the first mark of a data set; again, where nothing followed it. Raises LedgerError: it has seen more of a
        data set of this name, which is in another database.
        """
        if self.is_set(dataset) and self.read(dataset).length > 1:
            raise LedgerError(
                f"the anchor in {self._store.uri} has seen charges or acts of a data set {dataset!r}, which is not in "
                "this ledger: restore the newest backup of its database, or choose another name"
            )
        self.write(dataset, mark)

    def advance(self, dataset: str, mark: Mark) -> None:
        """Set the mark of a data set unless it has seen more already."""
        if mark.length > self.read(dataset).length:
            self.write(dataset, mark)


def _name(dataset: str) -> str:
    return f"{hashlib.sha256(dataset.encode()).hexdigest()[:32]}.json"
