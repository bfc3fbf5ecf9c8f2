"""Answers by replicates: differences, ratios, regressions; and what R or Stata compute from the same replicates.

A difference is asked as ``mean hours where sex = 1 minus mean hours where sex = 2``, a ratio as ``count where a = 1
over count where b = 1``, a regression as ``regression income = 2 on age, hours, sex = 1 where state = 8``, with
``logistic`` before it for a logistic one. An outcome or a term is an attribute with numbers, or a condition on one
attribute (1 where it holds); the constant is always there.

What was measured are tables of up to three attributes. Sums over one attribute in another's classes are functions of
these, and so are the normal equations of a linear regression; an estimate that needs more has no interval.
"""

from __future__ import annotations

import re

import numpy as np

from dpdist.errors import SpecError
from dpdist.inference.answers import QUESTION, TOO_MANY, Answer, infer
from dpdist.inference.published import Published
from dpdist.inference.replicates import Replicates, linear, logistic, make_replicates
from dpdist.privacy.arrays import Floats
from dpdist.schema.conditions import Condition, ends_of, parse_condition

LOGISTIC_NOTE = "a logistic regression depends on more than the tables that were measured: its interval is approximate"
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`")
_REGRESSION = re.compile(r"\s*(logistic\s+)?regression\s+(.+?)\s+on\s+(.+?)(?:\s+where\s+(.+))?\s*\Z", re.DOTALL)
_BETWEEN = re.compile(r"\s+(minus|over)\s+")


def answer(release: Published, question: str) -> list[Answer]:
    """Answer a question of `dpdist.inference.answers.infer`, or one that compares: one answer, or one for each term.

    Raises
    ------
    SpecError
        The question cannot be read or has no answer.
    """
    hidden = _QUOTED.sub(lambda match: "q" * len(match.group()), question)
    single = QUESTION.fullmatch(question)
    is_mean = single is not None and single[2] == "mean"
    if release.errors is None or not (is_mean or _REGRESSION.fullmatch(hidden) or _BETWEEN.search(hidden)):
        return [infer(release, question)]
    return by_replicates(make_replicates(release), question)


def by_replicates(replicates: Replicates, question: str) -> list[Answer]:
    """Answer a question with the replicates alone, as R's survey package does with the same weights.

    Raises
    ------
    SpecError
        The question cannot be read, or asks for a quantile.
    """
    hidden = _QUOTED.sub(lambda match: "q" * len(match.group()), question)
    found = _REGRESSION.fullmatch(hidden)
    if found is not None:
        parts = [None if start < 0 else question[start:end] for start, end in (found.span(k) for k in range(1, 5))]
        return _regression(replicates, question, parts)
    between = _BETWEEN.search(hidden)
    if between is None:
        estimate, few = _quantity(replicates, question)
        return [_answered(replicates, question, estimate, few)]
    if _BETWEEN.search(hidden, between.end()):
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
    values = _numbers(replicates, place)
    rows, weights = replicates.grouped([inside, values])
    total = rows[:, 0] @ weights
    if not total.all():
        raise SpecError(f"no record of the release meets the condition {condition.text!r}")
    return (rows[:, 0] * rows[:, 1]) @ weights / total, len({place, *condition.attributes}) <= 3


def _numbers(replicates: Replicates, place: int) -> Floats:
    """The number of each record's value of an attribute: the middles of bins."""
    attribute = replicates.release.schema.attributes[place]
    ends = None if attribute.is_continuous else ends_of(attribute)
    if ends is None:
        raise SpecError(f"attribute {attribute.name!r} has no numbers: write a condition, such as {attribute.name} = …")
    middles = (ends[0].astype(np.float64) + ends[1]) / 2
    middles = np.append(middles, np.full(attribute.cardinality - len(middles), middles.mean()))
    return np.asarray(middles[replicates.codes[place]])


def _regression(replicates: Replicates, question: str, parts: list[str | None]) -> list[Answer]:
    kind, outcome, listed, where = parts
    schema = replicates.release.schema
    condition = Condition("", ({},)) if where is None else parse_condition(where, schema)
    names = ["constant", *_listed(listed or "")]
    columns = [_term(replicates, text) for text in (outcome or "", *names[1:])]
    if kind and set(np.unique(columns[0])) - {0.0, 1.0}:
        raise SpecError("the outcome of a logistic regression is a condition, such as: income = 2")
    inside = condition.holds(replicates.codes)
    if not inside.any():
        raise SpecError(f"no record of the release meets the condition {condition.text!r}")
    rows, weights = replicates.grouped([*columns, inside.astype(np.float64)])
    rows, weights = rows[rows[:, -1] > 0], weights[rows[:, -1] > 0]
    terms = np.concatenate([np.ones((len(rows), 1)), rows[:, 1:-1]], axis=1)
    found = (logistic if kind else linear)(terms, rows[:, 0], weights)
    few = len(condition.attributes) <= 1  # with an outcome and a term these are three attributes
    note = LOGISTIC_NOTE if kind else ""
    return [
        _answered(replicates, f"{question}: {name}", estimates, few, note)
        for name, estimates in zip(names, found, strict=True)
    ]


def _listed(text: str) -> list[str]:
    """What stands between commas outside of quotes and parentheses."""
    found, depth, start = [], 0, 0
    hidden = _QUOTED.sub(lambda match: "q" * len(match.group()), text)
    for k, letter in enumerate(hidden):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            found.append(text[start:k])
            start = k + 1
    return [part.strip() for part in (*found, text[start:])]


def _term(replicates: Replicates, text: str) -> Floats:
    """An attribute's number for each record, or whether a condition on one attribute holds."""
    schema = replicates.release.schema
    name = text.strip().strip("`")
    if name in schema.names:
        return _numbers(replicates, schema.names.index(name))
    condition = parse_condition(text, schema)
    if len(condition.attributes) != 1:
        raise SpecError(f"the term {text!r} is not of one attribute: products of attributes are not admitted")
    return condition.holds(replicates.codes).astype(np.float64)
