"""A release as an audit or an adversary runs it: the family's own stages, in this process, on records in memory.

A rehearsal computes with plain calls, stores in memory, and asks no ledger. Nothing else differs from a release: one
key and one table give the records that are published. Thousands of rehearsals of a small table take seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from dpdist.cluster.executor import InProcess
from dpdist.data.records import Records, RecordsInMemory
from dpdist.families.base.attempt import Attempt, ReleasedRecords, StorableT, silent
from dpdist.families.base.family import Stage
from dpdist.families.base.plan import Plan
from dpdist.ledger.keys import KeyRef
from dpdist.privacy.arrays import Codes, joined
from dpdist.privacy.noise import Noise
from dpdist.storage.store import MemoryStore

EXECUTOR = InProcess()


class Rehearsal(Attempt[Any, Any]):
    """An attempt that ends with its process: it keeps in memory what others store to be resumed."""

    @cached_property
    def records(self) -> Records:
        """The table: its records are bounded and weighted already."""
        (records,) = self.located.sides
        return records

    def stored(self, kind: type[StorableT], make: Callable[[], StorableT]) -> StorableT:
        """The result, made now."""
        made = make()
        self.keep(made)
        return made


def rehearse(
    plan: Plan,
    stages: Sequence[Stage[Any, Any]],
    codes: Codes,
    *,
    key: KeyRef,
    until: type | None = ReleasedRecords,
    partitions: int = 1,
) -> Rehearsal:
    """Run the stages of a release of some records, as the family has them, up to the one that returns a result of the
    type `until` (None: all of them). `codes` has a column for each attribute of the spec's table, `key` is a fixed one
    (`key_from`). Raises CheckFailed: a declared bound is not confirmed, so nothing would be published.
    """
    spec = plan.spec
    attempt = Rehearsal(
        spec=spec,
        plan=plan,
        table=RecordsInMemory.of(spec.table, codes, partitions=partitions),
        executor=EXECUTOR,
        key=key,
        id="rehearsal",
        work=MemoryStore(),
        output=MemoryStore(),
        progress=silent,
        before_noise=lambda: None,  # no ledger is asked: the records are nobody's
    )
    for stage in stages:
        result = attempt.run(stage)
        if until is not None and isinstance(result, until):
            break
    return attempt


def released_codes(attempt: Rehearsal) -> Codes:
    """The records that a rehearsal would publish."""
    parts = attempt.executor.compute(attempt.result(ReleasedRecords).parts)
    return joined(parts)


def key_from(noise: Noise) -> KeyRef:
    """The key of a rehearsal whose randomness is that of `noise`."""
    return KeyRef.fixed(noise.words("rehearsal", 4).tobytes().hex())
