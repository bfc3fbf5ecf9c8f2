"""A release as an adversary may run it: the same mechanism, in this process, on a table of the adversary's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache

import numpy as np

from dpdist.errors import SpecError
from dpdist.evaluate.attacks.records import Columns
from dpdist.evaluate.attacks.shadow import Generator
from dpdist.evaluate.utility.statistics import respecified
from dpdist.families.deniability.plan import ModelPlan, PlausibleDeniabilityPlan, plan
from dpdist.families.deniability.spec import PlausibleDeniabilitySpec
from dpdist.families.deniability.structure import structure_plan
from dpdist.families.deniability.whole import release_once
from dpdist.privacy.noise import Noise
from dpdist.publish.manifest import Manifest
from dpdist.spec import ReleaseSpec, change

_DECLARED = 0.9  # of the records of a shadow table
_ALWAYS = -(1 << 62)  # a threshold that every count reaches


def mechanism_of(spec: ReleaseSpec, *, training: int) -> Generator | None:
    """The mechanism of a spec for shadow tables; None for a family whose releases need a cluster.

    Parameters
    ----------
    spec : ReleaseSpec
        Of plausible deniability.
    training : int
        Records of the table that the release was made from: a shadow release keeps the ratio of released records to
        them.

    Returns
    -------
    callable or None
        A shadow table and a seed to its release. It raises `DpdistError` where the table is too small for the spec.
        Released records and k keep their ratio to the records of the table, and the budget of each stage is that of the
        release. Checks of declared numbers are left out: the adversary knows its own table.
    """
    if not isinstance(spec, PlausibleDeniabilitySpec):
        return None

    @cache
    def whole() -> PlausibleDeniabilityPlan:
        return plan(spec)

    @lru_cache(maxsize=4)
    def planned(records: int) -> PlausibleDeniabilityPlan:
        return _shrunk(whole(), records, records / training)

    def make(table: Columns, seed: int) -> Columns:
        noise = Noise(np.random.default_rng([seed, 0x5AD0]).bytes(32))
        return release_once(planned(len(table[0])), table, noise=noise).records

    return make


def mechanism_of_release(
    manifest: Manifest, *, training: int, written: Callable[[Columns], Columns]
) -> Generator | None:
    """The mechanism that the public manifest of a release describes, as `mechanism_of`.

    Parameters
    ----------
    manifest : Manifest
    training : int
        Records of the table that the release was made from.
    written : callable
        From codes to codes as far as a release tells them apart (`ReleaseDecoder.merged`).

    Returns
    -------
    callable or None
        None also where this version cannot read the settings.
    """
    try:
        make = mechanism_of(respecified(manifest), training=training)
    except SpecError:  # of another version
        return None
    return None if make is None else lambda table, seed: written(make(table, seed))


def _shrunk(whole: PlausibleDeniabilityPlan, records: int, share: float) -> PlausibleDeniabilityPlan:
    """The plan for a table of `records`, with the noise of each stage as in the whole release."""
    spec = whole.spec
    settings = {
        "data.minimum_records": max(1, int(_DECLARED * records)),
        "synthesis.records": max(1, round(share * spec.synthesis.records)),
        "privacy.deniability.k": max(1, round(share * spec.privacy.deniability.k)),
        "privacy.accept_per_record": True,
        "privacy.limit": None,
    }
    small = change(spec, settings)
    seeds = whole.seeds
    if seeds is not None:
        seeds = replace(
            seeds,
            minimum=1,
            whole_release=False,
            count=None,
            passes=None,
            passing_mass=None,
            candidates=max(1, round(4 * share * seeds.candidates)),
            event=None,
        )
    return replace(whole, spec=small, model=_shrunk_model(whole.model, small), seeds=seeds)


def _shrunk_model(model: ModelPlan, spec: PlausibleDeniabilitySpec) -> ModelPlan:
    """The model's plan: statistics whose sensitivity is that of so few records, at the stage's budget."""
    if model.check is None or model.structure is None:
        return replace(model, spec=spec)
    spent = spec.privacy.check_share
    least = max(2, int(spec.data.minimum_records * spec.split.structure))
    structure = structure_plan(
        spec.table,
        minimum_records=least,
        epsilon=(1 - spent) / (model.check.scale * spent),
        delta=model.check.delta * (1 - spent) / spent,
        score=spec.model.score,
    )
    return replace(model, spec=spec, check=replace(model.check, minimum=least, threshold=_ALWAYS), structure=structure)
