"""One attempt at a release: what its stages share, and their results so far, by type."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from dpdist.cluster.executor import Executor
from dpdist.data.records import Records
from dpdist.families.base.family import PlanT, SpecT, Stage
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.privacy.noise import Noise
from dpdist.publish.part_format import FileRecord, PartRecord
from dpdist.storage.store import Store

log = logging.getLogger("dpdist")

Progress = Callable[[str, int, int], None]
"""Called with (stage, finished steps, all steps)."""

ResultT = TypeVar("ResultT")


def drawing_key(attempt: str) -> str:
    """The public drawing key of an attempt, in hexadecimal."""
    return hashlib.sha256(b"dpdist drawing key\0" + attempt.encode()).hexdigest()


class Storable(Protocol):
    """A result that is computed once, stored in the work folder and read back."""

    FILE: ClassVar[str]

    def to_bytes(self) -> bytes:
        """The result as bytes, the same on every machine."""

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """The result from its bytes."""


StorableT = TypeVar("StorableT", bound=Storable)


def silent(stage: str, done: int, total: int) -> None:
    """Report no progress."""


def silent_commit(digest: str) -> None:
    """Ask nobody."""


@dataclass
class Attempt(Generic[SpecT, PlanT]):
    """What the stages of one attempt share.

    Attributes
    ----------
    spec, plan, table, executor :
        What is released, from what, and where it computes.
    key : KeyRef
        Where workers find the key of the attempt.
    id : str
        Id of the attempt.
    work, output : Store
        The confidential folder of the attempt, and the release.
    operator : dict
        What only the operator may see; ends in the run record.
    public : dict
        Public facts found on the way, such as the outcomes of noisy checks; they end in the manifest's parameters.
    parts : tuple of PartRecord
        The written parts of the release, once they are.
    files : tuple of FileRecord
        What is released beside them.
    before_noise : callable
        Tells the ledger that records are about to be read or noise to be drawn: the charge stays from then on.
    before_commit : callable
        Called with the manifest's SHA-256 before the ledger commits: where others must agree to it.
    contract : str or None
        Digest of the contract of the data set, which the spec is a part of; None where there is none.
    public_tables : str or None
        Digest of the public tables that the attempt is bound to besides its spec; None where there are none.
    """

    spec: SpecT
    plan: PlanT
    table: Records
    executor: Executor
    key: KeyRef
    id: str
    work: Store
    output: Store
    progress: Progress
    before_noise: Callable[[], None]
    operator: dict[str, Any] = field(default_factory=dict)
    public: dict[str, Any] = field(default_factory=dict)
    parts: tuple[PartRecord, ...] = ()
    files: tuple[FileRecord, ...] = ()
    before_commit: Callable[[str], None] = silent_commit
    contract: str | None = None
    public_tables: str | None = None
    _results: dict[type, object] = field(default_factory=dict)

    @property
    def noise(self) -> Noise:
        """The noise of the attempt; the ledger is told before it is handed out."""
        self.before_noise()
        return load_noise(self.key)

    @property
    def drawing_key(self) -> KeyRef:
        """The key with which records are drawn from a public model: public, and independent of the noise.

        It is a hash of the attempt's id, which was fixed before a record was read; of a fixed test key where there is
        one, so that tests can be repeated.
        """
        return KeyRef.fixed(drawing_key(self.key.uri if self.key.is_fixed else self.id))

    def run(self, stage: Stage[SpecT, PlanT]) -> object:
        """Run a stage, keep its result for later ones and return it."""
        result = stage.run(self)
        if result is not None:
            self.keep(result)
        return result

    def keep(self, result: object) -> None:
        """Keep the result of a stage for later ones."""
        self._results[type(result)] = result

    def result(self, kind: type[ResultT]) -> ResultT:
        """The result of this type that an earlier stage returned. Raises LookupError: no stage has returned one; the
        stages of the family are in another order.
        """
        found = self._results.get(kind)
        if not isinstance(found, kind):
            raise LookupError(f"no stage before this one has returned a {kind.__name__}")
        return found

    def stored(self, kind: type[StorableT], make: Callable[[], StorableT]) -> StorableT:
        """A result that is drawn or computed once: read back if stored, else made, stored once and read back.

        It is kept, as are the results that stages return.
        """
        if self.work.exists(kind.FILE):
            content = self.work.read_bytes(kind.FILE)
        else:
            content = self.work.write_exclusive(kind.FILE, make().to_bytes())
        found = kind.from_bytes(content)
        self.keep(found)
        return found

    @contextmanager
    def stage(self, name: str) -> Iterator[Callable[[int, int], None]]:
        """Time a part of the work for the operator and forward its progress."""
        start = time.perf_counter()
        log.info("stage started", extra={"stage": name, "attempt": self.id})
        self.progress(name, 0, 1)
        yield lambda done, total: self.progress(name, done, total)
        self.progress(name, 1, 1)
        seconds = round(time.perf_counter() - start, 3)
        self.operator.setdefault("seconds", {})[name] = seconds
        log.info("stage finished", extra={"stage": name, "attempt": self.id, "seconds": seconds})
