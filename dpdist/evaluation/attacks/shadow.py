"""Shadow models: the adversary learns on releases of its own what a member looks like.

A classifier learns to tell records of shadow tables from others by how many released and reference records are near
them. It is then asked about the real release. The adversary may know the mechanism (`Generator`), or use a stand-in
that copies records in part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpdist.errors import SpecError
from dpdist.evaluation.attacks.intervals import AttackTables
from dpdist.evaluation.records import Agreement, coarse, drawn, size, stacked, take
from dpdist.families.base.plan import Plan
from dpdist.families.base.registry import family_of, stages_of
from dpdist.families.base.rehearsal import key_from, rehearse, released_codes
from dpdist.privacy.arrays import Codes, Counts, Floats
from dpdist.privacy.noise import Noise
from dpdist.publish.manifest import Manifest
from dpdist.spec.reader import load_public
from dpdist.spec.release import ReleaseSpec

Generator: TypeAlias = Callable[[Codes, int], Codes]  # a table and a seed to a release of it, in the same schema
_MOST = 10_000  # records of a shadow table
_LARGEST_RATIO = 10.0


def partial_copies(table: Codes, seed: int, *, ratio: float = 1.0) -> Codes:
    """Records that copy a random number of values of a record of the table each, `ratio` times its number."""
    rng = np.random.default_rng([seed, 5])
    count, m = max(1, round(ratio * size(table))), len(table)
    seeds = rng.integers(0, size(table), count)
    order = rng.random((m, count)).argsort(axis=0)
    kept = order < rng.integers(0, m + 1, count)
    fresh = [column[rng.integers(0, size(table), count)] for column in table]
    return [np.where(k, column[seeds], other) for k, column, other in zip(kept, table, fresh, strict=True)]


@dataclass(frozen=True, eq=False)
class Profile:
    """How many records of a table are near each target."""

    counts: Floats  # ndarray of float64, shape (3, targets): those that differ in no, one and two attributes
    singles: Counts  # shape (attributes, targets): those that agree on all attributes but, perhaps, one
    records: int  # records of the table

    @classmethod
    def of(cls, targets: Codes, table: Codes, agreement: Agreement) -> Profile:
        """Count the records of a table (coarse codes)."""
        return cls(*agreement.profiles(targets, table), size(table))

    def __add__(self, other: Profile) -> Profile:
        return Profile(self.counts + other.counts, self.singles + other.singles, self.records + other.records)

    def log_share(self, counts: NDArray[Any]) -> Floats:
        """Logarithms of shares of the table, half a record added to each count."""
        return np.asarray(np.log((counts + 0.5) / (self.records + 1)))


def log_profiles(released: Profile, reference: Profile) -> Floats:
    """What the classifier sees of each target, float64[targets, 10]: log densities and their differences."""
    ours, theirs = (near.log_share(near.counts) for near in (released, reference))
    single = released.log_share(released.singles) - reference.log_share(reference.singles)
    return np.vstack([ours, theirs, ours - theirs, single.max(axis=0)]).T


def shadow_classifier(
    tables: AttackTables, population: Codes, agreement: Agreement, mechanism: Generator | None
) -> Any:
    """A classifier that is trained on shadow releases of parts of the adversary's records (`population`)."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    schema, sizes, ratio = tables.schema, tables.sizes, size(tables.released) / size(tables.training)
    make = mechanism or partial(partial_copies, ratio=min(ratio, _LARGEST_RATIO))
    profiles, labels = [], []
    for number in range(sizes.shadows):
        rng = np.random.default_rng([tables.seed, 6, number])
        some = drawn(population, 3 * _MOST, rng)
        third = size(some) // 3
        table, others, reference = (take(some, np.arange(i * third, (i + 1) * third)) for i in range(3))
        release = coarse(make(table, int(rng.integers(1 << 31))), schema)
        targets = stacked(*(drawn(coarse(side, schema), sizes.targets, rng) for side in (table, others)))
        near = (Profile.of(targets, side, agreement) for side in (release, coarse(reference, schema)))
        profiles.append(log_profiles(*near))
        labels.append(np.repeat([1, 0], size(targets) // 2))
    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=200))
    return classifier.fit(np.concatenate(profiles), np.concatenate(labels))


def mechanism_of(spec: ReleaseSpec, *, training: int) -> Generator | None:
    """The mechanism of a spec for shadow tables: a table and a seed to its release, or `DpdistError` if it is too
    small.

    `training` is the number of records of the real table. None where the family plans no releases of shadow tables.
    """
    shadow, make_plan = family_of(spec).shadow, family_of(spec).plan
    if shadow is None:
        return None

    @cache
    def whole() -> Plan:
        plan: Plan = make_plan(spec)
        return plan

    @lru_cache(maxsize=4)
    def planned(records: int) -> Plan:
        plan: Plan = shadow(whole(), records, records / training)
        return plan

    def make(table: Codes, seed: int) -> Codes:
        noise = Noise(np.random.default_rng([seed, 0x5AD0]).bytes(32))
        plan = planned(len(table[0]))
        return released_codes(rehearse(plan, stages_of(plan), table, key=key_from(noise)))

    return make


def mechanism_of_release(manifest: Manifest, *, training: int, written: Callable[[Codes], Codes]) -> Generator | None:
    """The mechanism of a public manifest, as `mechanism_of`; None also where this version cannot read the settings or
    they name functions of the publisher. `written` takes codes to codes as far as a release tells them apart.
    """
    try:
        spec = load_public(manifest.spec, manifest.table)
        make = None if spec.plugins else mechanism_of(spec, training=training)
    except SpecError:  # of another version
        return None
    return None if make is None else lambda table, seed: written(make(table, seed))
