"""A release as an adversary may run it: the same mechanism, in this process, on a table of the adversary's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache

import numpy as np

from dpdist.errors import SpecError
from dpdist.evaluation.attacks.shadow import Generator
from dpdist.families.base.plan import Plan
from dpdist.families.base.registry import family_of, stages_of
from dpdist.families.base.rehearsal import key_from, rehearse, released_codes
from dpdist.privacy.arrays import Codes
from dpdist.privacy.noise import Noise
from dpdist.publish.manifest import Manifest
from dpdist.spec.reader import load_public
from dpdist.spec.release import ReleaseSpec


def mechanism_of(spec: ReleaseSpec, *, training: int) -> Generator | None:
    """The mechanism of a spec for shadow tables: a table and a seed to its release. It raises `DpdistError` where the
    table is too small for the spec.

    `training` is the number of records of the table that the release was made from. None where the family plans no
    releases of shadow tables (`dpdist.families.base.family.Family.shadow`).
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
    """The mechanism that the public manifest of a release describes, as `mechanism_of`; None also where this version
    cannot read the settings. `written` takes codes to codes as far as a release tells them apart
    (`ReleaseDecoder.merged`).
    """
    try:
        make = mechanism_of(load_public(manifest.spec, manifest.table), training=training)
    except SpecError:  # of another version
        return None
    return None if make is None else lambda table, seed: written(make(table, seed))
