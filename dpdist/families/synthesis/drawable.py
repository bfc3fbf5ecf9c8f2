"""Whether the noise of every step can be drawn: found before the charge, by public numbers.

A sampler draws noise of a deviation up to `LARGEST_SCALE`, and a pick has a cost that can be computed. Which tables a
round measures depends on noise, so the deviations are bounded: a table's part of its share is at least what the
weights of the other tables leave it (`Learner.round`, `measure_one_way`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpdist.errors import AccountingError
from dpdist.families.synthesis.choices import Choices
from dpdist.families.synthesis.regression_scores import sensitivity
from dpdist.families.synthesis.regression_steps import STEPS
from dpdist.privacy.grid import LARGEST_SCALE
from dpdist.privacy.selection import pick_scale

_ROUNDED = 1.5
"""Weights are rounded to powers of the root of two: a part of a share changes by so much at most."""

_PRIORITIES = 1 << 10
_OF_RARE = 4
"""The largest ratio of the priorities of pairs, and of the weights of an attribute with and without a rare value."""


def regression_deviation(regressions: int, coefficients: int, *, mu: float) -> float:
    """The largest deviation of the steps of so many declared regressions, which are mu-GDP together."""
    return sensitivity(coefficients) * math.sqrt(_ROUNDED * regressions / min(STEPS)) / mu


def refuse_undrawable(choices: Choices, cardinalities: Sequence[int]) -> None:
    """Refuse choices with a step whose noise could not be drawn. Raises AccountingError."""
    c, m = choices, len(cardinalities)
    pairs, values = m * (m - 1) // 2, math.sqrt(max(cardinalities))
    of_pairs = _PRIORITIES * 2 * math.prod(sorted(cardinalities)[-2:]) ** 0.5
    rounds = max(c.rounds, 1)
    for name, share, tables, ratio, size in (
        ("one_way", c.one_way, m, values, 1),
        ("one_way_again", c.one_way_again, m, _OF_RARE * (values + 1), 1),
        ("tree", c.tree, m - 1, of_pairs, 1),
        ("pairs", c.pairs / rounds, c.per_round, of_pairs, 1),
        ("misfit", c.misfit, 1, 1.0, pairs),
        ("rake", c.rake / rounds, max(c.per_round, pairs), of_pairs, 1),
        ("triples", c.triples, c.triple_tables, 1.0, 1),
    ):
        if share:
            check_deviation(f"privacy.epsilon: {name}", size * math.sqrt(_ROUNDED * tables * ratio / share) / c.mu)
    of_round = c.picks / max(c.rounds + bool(c.tree), 1)
    for name, share, picks in (
        ("picks", of_round * bool(c.tree), m - 1),
        ("picks", of_round * bool(c.rounds), c.per_round),
        ("rake", 0.05 * c.rake / rounds, c.per_round),
        ("triple_picks", c.triple_picks, c.triple_tables),
    ):
        if share and picks:
            try:
                pick_scale(cost=c.mu * math.sqrt(share / picks))
            except AccountingError as error:
                raise AccountingError(f"privacy.epsilon: {name}: {error}: change epsilon") from None


def check_deviation(setting: str, deviation: float) -> None:
    """Refuse noise of a deviation that is not drawn. Raises AccountingError: it names the share that pays for it."""
    if not deviation <= LARGEST_SCALE:
        raise AccountingError(
            f"{setting}: noise of a deviation of up to {deviation:.2g} would be needed, and at most 2^45 is drawn: "
            "raise epsilon or this share, or leave the share out"
        )
