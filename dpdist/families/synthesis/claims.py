"""What a synthesis states, on small tables made to contradict it: the stages themselves are run.

A canary is alone in its values: it moves one cell of every table, and every distance of a pair by one.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from dpdist.families.base.rehearsal import key_from, rehearse
from dpdist.families.synthesis.learn import Learned
from dpdist.families.synthesis.plan import SynthesisPlan
from dpdist.families.synthesis.stages import stages
from dpdist.privacy.arrays import Codes, Floats
from dpdist.privacy.noise import Noise
from dpdist.privacy.testing import Claim

_OTHERS = 40  # records of the table beside the canary


def model_claim(plan: SynthesisPlan, *, others: int = _OTHERS) -> Claim:
    """All that is learned of a table of equal records, with and without a record that differs in every attribute.

    The released numbers are the noisy one-way counts of the canary's values, the noisy number of records, how many
    pairs were measured, and whether all were.

    Parameters
    ----------
    plan : SynthesisPlan
    others : int
        Records beside the canary.
    """
    attributes = plan.spec.table.attributes
    table: Codes = [np.zeros(others, attribute.dtype) for attribute in attributes]
    canary: Codes = [np.array([attribute.cardinality - 1], attribute.dtype) for attribute in attributes]
    joined = [np.concatenate(columns) for columns in zip(table, canary, strict=True)]
    absent, present = (partial(_learned, plan, codes) for codes in (table, joined))
    return Claim(
        name=f"model of {len(attributes)} attributes",
        absent=absent,
        present=present,
        epsilon=plan.epsilon,
        delta=plan.delta,
    )


def _learned(plan: SynthesisPlan, codes: Codes, noise: Noise) -> Floats:
    learned = rehearse(plan, stages(plan), codes, key=key_from(noise), until=Learned).result(Learned)
    last = [table[-1] for table in learned.one_way]
    chosen = [float(len(learned.report["pairs"])), float(learned.report["raked"])]
    return np.array([learned.report["records"], *last, *chosen], np.float64)


def claims(plan: SynthesisPlan) -> tuple[Claim, ...]:
    """The whole of learning; drawing records from the model is post-processing."""
    return (model_claim(plan),)
