"""What the stages of one attempt share: the spec, the plan, the table, the cluster, the stores and the key."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dpdist.cluster.cluster import Cluster
from dpdist.data.table import Table
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.privacy.noise import Noise
from dpdist.publish.parts import PartRecord
from dpdist.storage.store import Store

if TYPE_CHECKING:
    from dpdist.families.plan import Plan
    from dpdist.spec import ReleaseSpec

log = logging.getLogger("dpdist")

Progress = Callable[[str, int, int], None]
"""Called with (stage, finished steps, all steps)."""


def silent(stage: str, done: int, total: int) -> None:
    """Report no progress."""


def silent_commit(digest: str) -> None:
    """Ask nobody."""


@dataclass
class Context:
    """What the stages of one attempt share.

    Attributes
    ----------
    spec, plan, table, cluster :
        What is released, from what, and where it runs.
    key : KeyRef
        Where workers find the key of the attempt.
    attempt : str
        Id of the attempt.
    work, output : Store
        The confidential folder of the attempt, and the release.
    operator : dict
        What only the operator may see; ends in the run record.
    results : dict
        What a step leaves for the next ones, in this process.
    public : dict
        Public facts found on the way, such as the outcomes of noisy checks; they end in the manifest's parameters.
    parts : tuple of PartRecord
        The written parts of the release, once they are.
    before_commit : callable
        Called with the manifest's SHA-256 before the ledger commits: where others must agree to it.
    """

    spec: ReleaseSpec
    plan: Plan
    table: Table
    cluster: Cluster
    key: KeyRef
    attempt: str
    work: Store
    output: Store
    progress: Progress
    before_noise: Callable[[], None]
    operator: dict[str, Any] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    public: dict[str, Any] = field(default_factory=dict)
    parts: tuple[PartRecord, ...] = ()
    before_commit: Callable[[str], None] = silent_commit

    @property
    def noise(self) -> Noise:
        """The noise of the attempt; the ledger is told before it is handed out."""
        self.before_noise()
        return load_noise(self.key)

    def stored(self, name: str, make: Callable[[], bytes]) -> bytes:
        """The stage result `name`: read back if stored, else made, stored once and read back."""
        if self.work.exists(name):
            return self.work.read_bytes(name)
        return self.work.write_exclusive(name, make())

    @contextmanager
    def stage(self, name: str) -> Iterator[Callable[[int, int], None]]:
        """Time a stage for the operator and forward its progress."""
        start = time.perf_counter()
        log.info("stage started", extra={"stage": name, "attempt": self.attempt})
        self.progress(name, 0, 1)
        yield lambda done, total: self.progress(name, done, total)
        self.progress(name, 1, 1)
        seconds = round(time.perf_counter() - start, 3)
        self.operator.setdefault("seconds", {})[name] = seconds
        log.info("stage finished", extra={"stage": name, "attempt": self.attempt, "seconds": seconds})
