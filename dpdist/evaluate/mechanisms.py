"""A release as an adversary may run it: the same mechanism, in this process, on a table of the adversary's own."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dpdist.evaluate.attacks.records import Columns
from dpdist.evaluate.attacks.shadow import Generator
from dpdist.evaluate.whole import release_once
from dpdist.privacy.noise import Noise
from dpdist.spec import ReleaseSpec, change
from dpdist.synthesis.plan import PlausibleDeniabilityPlan, plan
from dpdist.synthesis.spec import PlausibleDeniabilitySpec

_DECLARED = 0.9  # of the records of a shadow table: its own checks then pass


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
        Released records and k keep their ratio to the records of the table; the seeds' checks are left out, as in a
        release per record, because the adversary knows its own table.
    """
    if not isinstance(spec, PlausibleDeniabilitySpec):
        return None

    @lru_cache(maxsize=4)
    def planned(records: int) -> PlausibleDeniabilityPlan:
        share = records / training
        settings = {
            "data.minimum_records": max(1, int(_DECLARED * records)),
            "synthesis.records": max(1, round(share * spec.synthesis.records)),
            "synthesis.minimum_pass_rate": spec.synthesis.minimum_pass_rate / 4,
            "privacy.deniability.k": max(1, round(share * spec.privacy.deniability.k)),
            "privacy.accept_per_record": True,
            "privacy.limit": None,
        }
        return plan(change(spec, settings))

    def make(table: Columns, seed: int) -> Columns:
        noise = Noise(np.random.default_rng([seed, 0x5AD0]).bytes(32))
        return release_once(planned(len(table[0])), table, noise=noise).records

    return make
