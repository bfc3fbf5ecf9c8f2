"""What is released of the measurements of a model, on a small table made to contradict what is stated of it.

The canary is alone in its values: it moves one cell of every table, and every distance. Of units it is several records.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from dpdist.accuracy.measured import Accuracy, measure_accuracy
from dpdist.accuracy.tables import Tables
from dpdist.model.account import GaussianAccount
from dpdist.model.choices import Choices
from dpdist.model.grids import Grids
from dpdist.model.learn import Known, Measured, measure
from dpdist.model.sums import Sum
from dpdist.privacy.arrays import Codes, Floats
from dpdist.privacy.noise import Noise
from dpdist.privacy.testing import Claim
from dpdist.spec.rules import Rules
from dpdist.spec.schema import Schema

OTHERS = 40  # records of the table beside the canary


def with_canary(schema: Schema, copies: int) -> tuple[Codes, Codes, Codes]:
    """A table of `OTHERS`, of one or two kinds, `copies` of a record that differs everywhere, and both together."""
    table: Codes = [(np.arange(OTHERS) % min(max(a.cardinality - 1, 1), 2)).astype(a.dtype) for a in schema.attributes]
    canary: Codes = [np.full(copies, a.cardinality - 1, a.dtype) for a in schema.attributes]
    return table, canary, [np.concatenate(columns) for columns in zip(table, canary, strict=True)]


def model_claim(
    schema: Schema, choices: Choices, *, accuracy_mu: float = 0.0, epsilon: float, delta: float, copies: int = 1
) -> Claim:
    """All that is released of a table, with and without a record that differs in every attribute.

    The noisy numbers are combined into log likelihood ratios: of all together, of each kind of table, and of the
    accuracy, whose measurement is `accuracy_mu`-GDP. The number of picks and the first pick follow.
    """
    table, _, joined = with_canary(schema, copies)
    # the fit is post-processing: a few steps keep the next round's distances near those of a release
    choices = replace(choices, iterations=(5,))
    cards, rules = schema.cardinalities, schema.forbidden
    released = Tables.counted(table, cards)
    absent, present = (
        partial(_evidence, counted, released, choices, accuracy_mu, copies / 2, rules)
        for counted in (Tables.counted(codes, cards, small=bool(choices.high)) for codes in (table, joined))
    )
    name = f"model of {len(cards)} attributes"
    return Claim(name=name, absent=absent, present=present, epsilon=epsilon, delta=delta)


def _evidence(
    exact: Tables, released: Tables, choices: Choices, accuracy_mu: float, half: float, rules: Rules, noise: Noise
) -> Floats:
    account = GaussianAccount(choices.mu, noise)
    measured = measure(exact, account, choices=choices, known=Known(rules))
    learner = measured.learner
    one_way = zip(learner.one_way.counts, learner.one_way.sigmas.tolist(), strict=True)
    pairs = [m.attributes for m in learner.measurements if len(m.attributes) == 2]
    first = learner.tables.pairs.index((pairs[0][0], pairs[0][1])) if pairs else -1
    away = 0.0
    if accuracy_mu:
        number = released.pairs.total
        away = of_accuracy(measure_accuracy(exact, released, records=number, mu=accuracy_mu, noise=noise), half)
    raked = measured.all_pairs
    cells = () if raked is None else zip(raked.tables, raked.sigmas.tolist(), strict=True)
    parts = [
        math.fsum((float(table[-1]) - half) / sigma**2 for table, sigma in one_way),
        _of_picked(measured, half),
        math.fsum((float(table[-1, -1]) - half) / sigma**2 for table, sigma in cells),
        0.0 if raked is None or raked.triples is None else _of_triples(raked.triples, released, half),
        away,
    ]
    return np.array([math.fsum(parts), *parts, len(pairs), first, measured.all_pairs is not None], np.float64)


def _of_triples(triples: Grids, released: Tables, half: float) -> float:
    """The canary's cells of merged tables, which others may share, less their mean without it, by precision."""
    others = [Sum(s, tuple(triples.groups[i] for i in s)).of(released) for s in triples.sets]
    cells = [tuple(int(triples.groups[i][-1]) for i in s) for s in triples.sets]
    found = zip(triples.tables, others, cells, strict=True)
    return math.fsum(float(table[cell] - other[cell]) - half for table, other, cell in found) / triples.sigma**2


def _of_picked(measured: Measured, half: float) -> float:
    """The canary's cells of the picked tables, less their mean without it, by precision: with tables of all pairs, of
    which the model has its own, of more attributes than two.
    """
    learner, measured_apart = measured.learner, 1 if measured.all_pairs is None else 2
    found, records = 0.0, learner.one_way.records
    last = [int(codes[-1]) for codes in learner.coding.maps]
    for m in learner.measurements:
        if len(m.attributes) > measured_apart:
            precision = m.weight / records**2
            found += (float(m.share[tuple(last[a] for a in m.attributes)]) * records - half) * precision
    return found


def of_accuracy(found: Accuracy, half: float) -> float:
    """The log likelihood ratio of a measured accuracy, if the canary's cells are empty in the released records."""
    sums = [
        (order.sums[0] - order.tables * half) * order.tables / float(np.min(order.deviation)) ** 2
        for order in found.orders
    ]
    return math.fsum(sums) + math.fsum((distance - half) / found.pairs_deviation**2 for distance in found.pairs)
