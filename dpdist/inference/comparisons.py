"""Answers by replicates: differences, ratios, regressions; and what R or Stata compute from the same replicates.

A difference is asked as ``mean hours where sex = 1 minus mean hours where sex = 2``, a ratio as ``count where a = 1
over count where b = 1``, a regression as ``regression income = 2 on age, hours, sex = 1 where state = 8``, with
``logistic`` before it for a logistic one. An outcome or a term is an attribute with numbers, or a condition on one
attribute (1 where it holds); the constant is always there.

What was measured are tables of up to three attributes. Sums over one attribute in another's classes are functions of
these, and so are the normal equations of a linear regression; an estimate that needs more has no interval. A regression
that the spec declared was measured itself: its coefficients and intervals are those, without replicates.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np

from dpdist.accuracy.coefficients import linear, logistic
from dpdist.errors import SpecError
from dpdist.inference.answers import NORMAL_95, QUESTION, TOO_MANY, Answer, infer
from dpdist.inference.published import Declared, Published
from dpdist.inference.replicates import Replicates, make_replicates
from dpdist.privacy.arrays import Floats
from dpdist.schema.conditions import Condition, parse_condition
from dpdist.schema.regression import Regression, asks_for_regression, hidden, numbers_of, parse_regression

LOGISTIC_NOTE = (
    "the interval is not reliable: a logistic regression depends on more than the tables that were measured; a spec "
    "that declares it (`regressions`) has it measured"
)
MEASURED_NOTE = "measured: the spec declared this regression"
_BETWEEN = re.compile(r"\s+(minus|over)\s+")


def answer(release: Published, question: str) -> list[Answer]:
    """Answer a question of `dpdist.inference.answers.infer`, or one that compares: one answer, or one for each term.

    Raises
    ------
    SpecError
        The question cannot be read or has no answer.
    """
    if asks_for_regression(question):
        asked = parse_regression(question, release.schema)
        declared = release.regressions.get(asked.key)
        if declared is not None and not declared.reason:
            return _measured(asked, declared, release)
        if declared is not None and release.errors is not None:
            note = f"declared, but not measured: {declared.reason}"
            found = by_replicates(make_replicates(release), question)
            return [replace(one, note="; ".join(filter(None, (note, one.note)))) for one in found]
    single = QUESTION.fullmatch(question)
    is_mean = single is not None and single[2] == "mean"
    if release.errors is None or not (is_mean or asks_for_regression(question) or _BETWEEN.search(hidden(question))):
        return [infer(release, question)]
    return by_replicates(make_replicates(release), question)


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
        estimate, few = _quantity(replicates, question)
        return [_answered(replicates, question, estimate, few)]
    if _BETWEEN.search(shown, between.end()):
        raise SpecError(f"the question {question!r} compares more than two quantities: ask for two at a time")
    left, few_left = _quantity(replicates, question[: between.start()])
    right, few_right = _quantity(replicates, question[between.end() :])
    if between.group(1) == "over" and not right.all():
        raise SpecError(f"no record of the release meets the second condition of {question!r}")
    estimate = left - right if between.group(1) == "minus" else left / right
    return [_answered(replicates, question, estimate, few_left and few_right)]


def _answered(replicates: Replicates, question: str, estimates: Floats, few: bool, note: str = "") -> Answer:
    """From an estimate and those of the replicates."""
    estimate = float(estimates[0])
    if not few:
        return Answer(question, estimate, None, None, None, TOO_MANY)
    deviation = float(np.sqrt(replicates.variances(estimates[:1], estimates[None, 1:]))[0])
    half = replicates.multiple() * deviation
    return Answer(question, estimate, deviation, estimate - half, estimate + half, note)


def _quantity(replicates: Replicates, text: str) -> tuple[Floats, bool]:
    """A count, a share or a mean by each set of weights, and whether it needs three attributes at most."""
    match = QUESTION.fullmatch(text)
    if match is None or match[4] or match[2] == "median":
        raise SpecError(f"{text.strip()!r} is not what replicates answer: ask for count, share or mean NAME, and where")
    schema = replicates.release.schema
    condition = Condition("", ({},)) if match[6] is None else parse_condition(match[6], schema)
    inside = condition.holds(replicates.codes).astype(np.float64)
    if match[2] is None:
        rows, weights = replicates.grouped([inside])
        counted = rows[:, 0] @ weights
        return counted / (weights.sum(0) if match[1] == "share" else 1), len(condition.attributes) <= 3
    (place,) = replicates.release.places([match[3].strip("`")])
    values = numbers_of(schema.attributes[place])[replicates.codes[place]]
    rows, weights = replicates.grouped([inside, values])
    total = rows[:, 0] @ weights
    if not total.all():
        raise SpecError(f"no record of the release meets the condition {condition.text!r}")
    return (rows[:, 0] * rows[:, 1]) @ weights / total, len({place, *condition.attributes}) <= 3


def _regression(replicates: Replicates, question: str) -> list[Answer]:
    codes = replicates.codes
    asked = parse_regression(question, replicates.release.schema)
    inside = asked.where.holds(codes)
    if not inside.any():
        raise SpecError(f"no record of the release meets the condition {asked.where.text!r}")
    columns = [term.values[codes[term.attribute]] for term in (asked.outcome, *asked.terms)]
    rows, weights = replicates.grouped([*columns, inside.astype(np.float64)])
    rows, weights = rows[rows[:, -1] > 0], weights[rows[:, -1] > 0]
    terms = np.concatenate([np.ones((len(rows), 1)), rows[:, 1:-1]], axis=1)
    found = (logistic if asked.is_logistic else linear)(terms, rows[:, 0], weights)
    few = len(asked.where.attributes) <= 1  # with an outcome and a term these are three attributes
    note = LOGISTIC_NOTE if asked.is_logistic else ""
    return [
        _answered(replicates, f"{question}: {name}", estimates, few, note)
        for name, estimates in zip(asked.names, found, strict=True)
    ]
