"""Answers by replicates: differences, ratios, regressions; and what R or Stata compute from the same replicates.

A difference is asked as ``mean hours where sex = 1 minus mean hours where sex = 2``, a ratio as ``count where a = 1
over count where b = 1``, a regression as ``regression income = 2 on age, hours, sex = 1 where state = 8``, with
``logistic`` before it for a logistic one. An outcome or a term is an attribute with numbers, or a condition on one
attribute (1 where it holds); the constant is always there. Records with missing values of what is averaged or regressed
are left out. Intervals end where the schema says that the quantity does. An interval of a count, share or mean allows
at least for the errors of the cells of its table, as if they were independent, and a mean for what these may have lost
together: replicates move rare values less than noise does, and a rare group by itself not at all. A regression adds
what the model may miss of the products that its coefficients move with, in a group of three attributes. An estimate
that needs tables of more than three attributes has no interval. A regression that the spec declared was measured
itself: its coefficients and intervals are those, without replicates.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from dpdist.accuracy.measured import linear, logistic
from dpdist.data.count import table_counts
from dpdist.errors import SpecError, printable
from dpdist.inference.answers import ANY, NORMAL_95, TOO_MANY, Answer, Quantity, Range, around, infer, parse_quantity
from dpdist.inference.perturbation import largest_error, not_drawn
from dpdist.inference.published import NO_ACCURACY, Declared, Published
from dpdist.inference.replicates import Replicates, make_replicates, without_replicates
from dpdist.privacy.arrays import Counts, Floats
from dpdist.privacy.formatting import Fact, html_table
from dpdist.spec.regression import Regression, asks_for_regression, hidden, parse_regression
from dpdist.spec.schema import Schema

LOGISTIC_NOTE = (
    "the interval is not reliable: a logistic regression depends on more than the tables that were measured; a spec "
    "that declares it (`regressions`) has it measured"
)
MEASURED_NOTE = "measured: the spec declared this regression"
BINS_NOTE = "numbers in bins count as their mean in the release: nothing was measured inside of bins"
_SURELY = 6.0  # deviations of the number of records from which on a noisy table says what a mean is
_ZEROS = np.zeros(2)
_BETWEEN = re.compile(r"\s+(minus|over)\s+")


class Answers(list[Answer]):
    """Answers; a list that notebooks show as one table."""

    def _repr_html_(self) -> str:
        said = [(printable(one.question), repr(one)) for one in self]
        return html_table(Fact(question, text.removeprefix(f"{question}: ")) for question, text in said)


def answer(release: Published, question: str) -> list[Answer]:
    """Answer a question of `dpdist.inference.answers.infer`, or one that compares: one answer, or one for each term.

    Raises
    ------
    SpecError
        The question cannot be read or has no answer.
    """
    found = _answers(release, question)
    if not _of_bins(question, release.schema):
        return found
    return [replace(one, note="; ".join(filter(None, (one.note, BINS_NOTE)))) for one in found]


def _of_bins(question: str, schema: Schema) -> bool:
    """Whether a question averages or regresses numbers in bins."""
    if asks_for_regression(question):
        asked = parse_regression(question, schema)
        return any(term.has_bins for term in (asked.outcome, *asked.terms))
    sides, shown = [question], hidden(question)
    if between := _BETWEEN.search(shown):
        sides = [question[: between.start()], question[between.end() :]]
    return any(one.kind == "mean" and one.values.has_bins for one in (parse_quantity(side, schema) for side in sides))


def _answers(release: Published, question: str) -> list[Answer]:
    """The answers but for what is inside of bins."""
    if asks_for_regression(question):
        declared = release.regressions.get((asked := parse_regression(question, release.schema)).key)
        if declared is not None and not declared.reason:
            return _measured(asked, declared, release)
        found = by_replicates(_replicates(release), question)
        if declared is None:
            return found
        note = f"declared, but not measured: {declared.reason}"
        return [replace(one, note="; ".join(filter(None, (note, one.note)))) for one in found]
    if _BETWEEN.search(hidden(question)):
        return by_replicates(_replicates(release), question)
    if release.errors is None or parse_quantity(question, release.schema).kind != "mean":
        return [infer(release, question)]
    return [mean(make_replicates(release), question)]


def mean(replicates: Replicates, question: str) -> Answer:
    """A mean by replicates; or from the noisy table of its attributes, where that was measured and is nearer: what the
    model leaves out of its records is in no replicate.

    Raises
    ------
    SpecError
        The question cannot be read, or no record has a value.
    """
    (found,) = by_replicates(replicates, question)
    release = replicates.release
    asked = parse_quantity(question, release.schema, release.bin_means)
    noisy = None if found.deviation is None else noisy_mean(release, asked)
    if noisy is None or found.deviation is None:
        return found
    estimate, deviation, below, above = noisy
    if not below + above < 2 * replicates.multiple() * found.deviation:
        return found
    estimate, low, high = around(estimate, below, asked.range, above=above)
    return Answer(question, estimate, deviation, low, high)


def noisy_mean(release: Published, asked: Quantity) -> tuple[float, float, float, float] | None:
    """A mean by the noisy table of its attributes, its deviation, and how far its interval reaches: the means around
    which the noisy sum is within 1.96 deviations of 0 (Fieller 1954). None where the table was not measured, or in
    part, or has few records for its noise.
    """
    measured = release.measured(asked.attributes) if len(asked.attributes) <= 2 else None
    if measured is None:
        return None
    cells, middles = _cells_of(asked, asked.attributes, release.schema)
    (noisy, noise), values = (column[cells] for column in measured), middles[cells]
    total = float(noisy.sum())
    if not total >= _SURELY * math.sqrt(float((noise**2).sum())):
        return None
    estimate = float(noisy @ values) / total
    away = values - estimate
    size, slope, spread = (NORMAL_95**2 * float((noise**2 * away**power).sum()) for power in range(3))
    left = total**2 - size
    root = math.sqrt(slope**2 + left * spread)
    return estimate, math.sqrt(spread) / NORMAL_95 / total, (root + slope) / left, (root - slope) / left


def _replicates(release: Published) -> Replicates:
    return make_replicates(release) if release.errors is not None else without_replicates(release)


def _measured(asked: Regression, declared: Declared, release: Published) -> list[Answer]:
    """The measured coefficients of a declared regression, in the order of the question."""
    order = [term.key for term in parse_regression(declared.question, release.schema).terms]
    places = [0, *(1 + order.index(term.key) for term in asked.terms)]
    found = []
    for name, place in zip(asked.names, places, strict=True):
        estimate, deviation = float(declared.coefficients[place]), math.sqrt(float(declared.covariance[place, place]))
        ends = estimate - NORMAL_95 * deviation, estimate + NORMAL_95 * deviation
        found.append(Answer(f"{asked.text}: {name}", estimate, deviation, *ends, MEASURED_NOTE))
    return found


def by_replicates(replicates: Replicates, question: str) -> list[Answer]:
    """Answer a question with the replicates alone, as R's survey package does with the same weights.

    Raises
    ------
    SpecError
        The question cannot be read, or asks for a quantile.
    """
    if asks_for_regression(question):
        return _regression(replicates, question)
    shown = hidden(question)
    between = _BETWEEN.search(shown)
    if between is None:
        asked, estimates = _quantity(replicates, question)
        least = _least(replicates, [(asked, float(estimates[0]), 1.0)])
        return [_answered(replicates, question, estimates, len(asked.attributes) <= 3, asked.range, least=least)]
    if _BETWEEN.search(shown, between.end()):
        raise SpecError(f"the question {question!r} compares more than two quantities: ask for two at a time")
    sides = question[: between.start()], question[between.end() :]
    left, right = (_quantity(replicates, side) for side in sides)
    few = max(len(left[0].attributes), len(right[0].attributes)) <= 3
    if between.group(1) == "minus":
        compared, slopes, (least, most), (low, high) = left[1] - right[1], (1.0, -1.0), left[0].range, right[0].range
        within = least - high, most - low
    else:
        if not right[1].all():
            raise SpecError(f"no record of the release meets the second condition of {question!r}")
        compared, within = left[1] / right[1], ratio_range(left[0], right[0])
        slopes = 1 / right[1][0], -compared[0] / right[1][0]
    both = [(asked, float(found[0]), slope) for (asked, found), slope in zip((left, right), slopes, strict=True)]
    return [_answered(replicates, question, compared, few, within, least=_least(replicates, both))]


def ratio_range(left: Quantity, right: Quantity) -> Range:
    """What the ratio of two quantities can be: of counts at most 1 where one is a part of the other."""
    if left.numbers is None and right.numbers is None:
        is_part = False
        if left.kind == right.kind:
            with suppress(SpecError):  # too many cases to tell
                is_part = left.condition.implies(right.condition)
        return 0.0, 1.0 if is_part else math.inf
    (a, b), (c, d) = left.range, right.range
    if c > 0 or d < 0:
        ends = [x / y if math.isfinite(x) or math.isfinite(y) else math.nan for x in (a, b) for y in (c, d)]
        return ANY if np.isnan(ends).any() else (min(ends), max(ends))
    return (0.0 if a >= 0 and c >= 0 else -math.inf), math.inf


def _answered(
    replicates: Replicates,
    question: str,
    estimates: Floats,
    few: bool,
    within: Range = ANY,
    note: str = "",
    least: float = 0.0,
) -> Answer:
    """From an estimate and its replicates; `few`: three attributes at most decide it; `least`: its least variance."""
    estimate = float(estimates[0])
    if not few or not replicates.number:
        return Answer(question, estimate, None, None, None, TOO_MANY if replicates.number else NO_ACCURACY)
    deviation = math.sqrt(max(float(replicates.variances(estimates[:1], estimates[None, 1:])[0]), least))
    half = replicates.multiple() * deviation
    estimate, low, high = around(estimate, half, within)
    return Answer(question, estimate, deviation, low, high, note)


def _quantity(replicates: Replicates, text: str) -> tuple[Quantity, Floats]:
    """A count, a share or a mean by each set of weights."""
    asked = parse_quantity(text, replicates.release.schema, replicates.release.bin_means)
    if asked.kind == "quantile":
        raise SpecError(f"{text.strip()!r} is not what replicates answer: ask for count, share or mean NAME, and where")
    inside = asked.condition.holds(replicates.codes)
    if asked.numbers is None:
        rows = np.flatnonzero(inside)
        (counted,) = replicates.totals(rows, np.ones((1, len(rows))))
        if asked.kind == "count":
            return asked, counted
        (every,) = replicates.totals(np.arange(len(inside)), np.ones((1, len(inside))))
        return asked, counted / every
    column = replicates.codes[asked.numbers.place]
    rows = np.flatnonzero(inside & asked.numbers.counted[column])
    total, added = replicates.totals(rows, np.stack([np.ones(len(rows)), asked.numbers.middles[column[rows]]]))
    if not total.all():
        raise SpecError(f"no record of the release has a value for the question {asked.text.strip()!r}")
    return asked, added / total


_Part = tuple[Quantity, float, float]  # a quantity, its estimate, and by how much of its error an answer moves


def _least(replicates: Replicates, parts: Sequence[_Part]) -> float:
    """The least variance of an answer: what two sides share cancels where one table has both."""
    apart = np.sum([_of_table(replicates, [part]) for part in parts], axis=0)
    return float(max(np.minimum(apart, _of_table(replicates, parts, apart))))


def _of_table(replicates: Replicates, parts: Sequence[_Part], other: Floats = _ZEROS) -> Floats:
    """Variance by errors of the cells of one table, which are independent; and of means by what the cells may have lost
    together, in deviations: a model that misses a dependence errs one way at small numbers and the other way at large
    ones. A mean has half of the variance of its noisy table at least. `other` where no table has all attributes.
    """
    release = replicates.release
    attributes = tuple(sorted({i for asked, _, _ in parts for i in asked.attributes}))
    if release.errors is None or not 1 <= len(attributes) <= 3:
        return other
    counts = table_counts(replicates.codes, release.schema.cardinalities, [attributes])
    sides = [slope * _slopes(replicates, asked, value, attributes, counts) for asked, value, slope in parts]
    slopes = np.sum(sides, axis=0)
    reaches = np.stack(release.errors.reaches(attributes, counts)) / NORMAL_95
    deviations, together = reaches[0], reaches.mean(0)  # what some cells lose, others gain
    measured = release.measured(attributes) if release.model.measurements and len(attributes) <= 2 else None
    if measured is not None:
        noisy, noise = measured
        away = np.hypot(counts * replicates.weight - noisy, noise)
        deviations = np.where(noise < deviations, away, deviations)
    lost, known_noise = 0.0, np.zeros(len(counts)) if measured is None else measured[1]
    least = np.where(np.isfinite(known_noise), known_noise, 0.0) * slopes
    for (asked, value, slope), side in zip(parts, sides, strict=True):
        if asked.numbers is None:
            continue
        distance, released = float(together[side != 0].sum()), counts[side != 0] * replicates.weight
        most = largest_error(not_drawn(distance, released), slopes[side != 0], released) / NORMAL_95
        known = noisy_mean(release, asked) if len(parts) == 1 else None
        if known is not None:
            most = min(most, abs(slope) * math.hypot(known[0] - value, known[1]))
        lost += max(most**2, float((least[side != 0] ** 2).sum()) / 2)
    return np.array([float(((deviations * slopes) ** 2).sum()), lost])


def _slopes(
    replicates: Replicates, asked: Quantity, estimate: float, attributes: tuple[int, ...], counts: Counts
) -> Floats:
    """By how much a quantity moves with a record more in each cell of a table."""
    release = replicates.release
    cells, middles = _cells_of(asked, attributes, release.schema)
    if asked.numbers is None:
        return cells / (release.records if asked.kind == "share" else 1.0)
    away = np.where(cells, middles - estimate, 0.0)
    return np.asarray(away / (counts[cells].sum() * replicates.weight))


def _cells_of(asked: Quantity, attributes: tuple[int, ...], schema: Schema) -> tuple[NDArray[np.bool_], Floats]:
    """Which cells of a table a quantity counts, and its numbers there (of a count or share 0)."""
    cells = asked.cells(attributes, schema)
    if asked.numbers is None:
        return cells, np.zeros(len(cells))
    code = np.indices([schema.cardinalities[i] for i in attributes])[attributes.index(asked.numbers.place)].ravel()
    return cells & asked.numbers.counted[code], asked.numbers.middles[code]


def _regression(replicates: Replicates, question: str) -> list[Answer]:
    codes = replicates.codes
    asked = parse_regression(question, replicates.release.schema, replicates.release.bin_means)
    inside = np.flatnonzero(asked.where.holds(codes))
    if not len(inside):
        raise SpecError(f"no record of the release has all values for the question {asked.text.strip()!r}")
    columns = [term.values[codes[term.attribute][inside]] for term in (asked.outcome, *asked.terms)]
    rows, weights = replicates.grouped(inside, columns)
    if np.ptp(rows[:, 0]) == 0:
        raise SpecError(f"the outcome of {question!r} is the same in all records: nothing says how unsure an answer is")
    terms = np.concatenate([np.ones((len(rows), 1)), rows[:, 1:]], axis=1)
    found = (logistic if asked.is_logistic else linear)(terms, rows[:, 0], weights)
    of_terms = [term.attribute for term in (asked.outcome, *asked.terms)]
    few = all(len({*pair, *asked.where.attributes}) <= 3 for pair in combinations(of_terms, 2))
    note = LOGISTIC_NOTE if asked.is_logistic else ""
    least = np.zeros(len(found))
    if few and replicates.number:
        least = replicates.variances(found[:, 0], found[:, 1:]) + _of_products(replicates, asked, inside, found[:, 0])
    return [
        _answered(replicates, f"{question}: {name}", estimates, few, note=note, least=float(variance))
        for name, estimates, variance in zip(asked.names, found, least, strict=True)
    ]


def _of_products(replicates: Replicates, asked: Regression, inside: Counts, coefficients: Floats) -> Floats:
    """Variances of the coefficients by errors of the cells of three attributes at most: a group's, and those of two
    terms, or of a term and the outcome, with whose centred product the coefficients move.

    Either these errors are independent, or the model misses how the product depends on the group. Where margins are
    right such an error is of one size in each quadrant (each factor above or below its mean), as records of two go to
    the two others: of that of a count over several cells, and inside of a quadrant in proportion to the product.
    """
    release, codes = replicates.release, replicates.codes
    found, of, last = np.zeros(len(coefficients)), (*asked.terms, asked.outcome), len(asked.terms)
    if release.errors is None:
        return found
    columns = np.stack([term.values[codes[term.attribute][inside]] for term in of])
    spread, means, slopes = 1.0, columns.mean(1, keepdims=True), coefficients[1:]
    if asked.is_logistic:
        fitted = 1 / (1 + np.exp(-np.clip(coefficients[0] + slopes @ columns[:last], -50, 50)))
        spread = float((fitted * (1 - fitted)).mean())
    columns -= means
    inverse = np.linalg.inv(columns[:last] @ columns[:last].T * (spread * replicates.weight))
    moved = np.concatenate([-means[:last].T, np.eye(last)]) @ inverse
    for a, b in combinations(range(last + 1), 2):
        by = moved[:, a] if b == last else -spread * (moved[:, a] * slopes[b] + moved[:, b] * slopes[a])
        scope = tuple(sorted({of[a].attribute, of[b].attribute, *asked.where.attributes}))
        shape = [release.schema.cardinalities[i] for i in scope]
        cells = np.ravel_multi_index([codes[i][inside].astype(np.int64) for i in scope], shape)
        _, first, counts = np.unique(cells, return_index=True, return_counts=True)
        product, quadrant = (columns[a] * columns[b])[first], (columns[[a, b]][:, first] > 0).T @ [2, 1]
        errors = release.errors.reaches(scope, counts)[1] / NORMAL_95
        of_one = release.errors.reaches(scope, np.bincount(quadrant, counts, 4))[1] / NORMAL_95
        sizes = np.maximum(of_one, np.sqrt(np.bincount(quadrant, errors**2, 4)))
        lost = largest_error(float(sizes.sum()), product, counts.astype(np.float64))
        found += by**2 * max(float(((errors * product) ** 2).sum()), lost**2)
    return found
