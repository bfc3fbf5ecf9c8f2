"""The accuracy that a synthesis is expected to have, and the epsilon for a stated one: `dpdist plan --accuracy`.

Both come from public facts alone: the declared domains and minimum of records, the choices of the plan and the number
of released records. Of the frequencies nothing is known, so attributes are taken as independent with Zipf shares 1,
1/2, 1/3, ... The error of two-way tables is a mean total variation distance to the table. It has two parts, which add
as squares:

- *noise*: a table of each pair as precise as those that the plan measures, where no cell can miss more than it is
  expected to hold. What pairs imply for others and what the fit smooths leaves a part of it, `KEPT_OF_NOISE`;
- *sampling*: released records drawn at random, of which group rounding and balancing leave `KEPT_OF_SAMPLING`.

The two parts were set on Adult, ACS 2013 and ACS 2024 at epsilon 0.1 to 8 (`docs/planning.md`). What a model
of pairs misses of a table's dependence is not public, and can be more than both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from dpdist.errors import SpecError
from dpdist.families.base.completed import write_completed
from dpdist.families.base.family import SolveRequest
from dpdist.families.synthesis.choices import L1_OF_NOISE, Choices
from dpdist.families.synthesis.plan import SynthesisPlan, plan
from dpdist.families.synthesis.rounds import EMPTY
from dpdist.families.synthesis.spec import PrivacySpec, WholeSynthesisSpec
from dpdist.privacy.arrays import Floats
from dpdist.schema.spec import change

KEPT_OF_NOISE = 0.3
KEPT_OF_SAMPLING = 0.5
_PAIRS = 300  # of more only some are looked at
_LARGEST = 20.0
_STEP = 1.25


@dataclass(frozen=True)
class Expected:
    """Expected error of two-way tables, in total variation: its parts by noise and by sampling."""

    noise: float
    sampling: float

    @property
    def error(self) -> float:
        """Both together."""
        return math.hypot(self.noise, self.sampling)


def expected(cardinalities: Sequence[int], choices: Choices, *, minimum: int, released: int) -> Expected:
    """What a plan is expected to give, for so many records in the table at least and so many released ones."""
    pairs = list(combinations(cardinalities, 2))
    if not pairs:
        return Expected(0.0, 0.0)
    sigma = _deviation(choices, len(cardinalities))
    noise, sampling = [], []
    for a, b in pairs[:: max(1, len(pairs) // _PAIRS)]:
        shares = np.outer(_zipf(a), _zipf(b))
        noise.append(np.minimum(L1_OF_NOISE * sigma, minimum * shares + EMPTY * sigma).sum() / 2 / minimum)
        sampling.append(np.minimum(L1_OF_NOISE * np.sqrt(shares / released), shares).sum() / 2)
    return Expected(KEPT_OF_NOISE * float(np.mean(noise)), KEPT_OF_SAMPLING * float(np.mean(sampling)))


def _zipf(size: int) -> Floats:
    weights = 1 / np.arange(1, size + 1)
    shares: Floats = weights / weights.sum()
    return shares


def _deviation(choices: Choices, attributes: int) -> float:
    """Deviation of a cell of a pair's table: of all pairs, or between those of the tree's and of the rounds' tables."""
    if choices.rake:
        return math.sqrt(attributes * (attributes - 1) / 2 / choices.rake) / choices.mu
    steps = [(choices.tree, attributes - 1), (choices.pairs, choices.rounds * choices.per_round)]
    precisions = [share * choices.mu**2 / tables for share, tables in steps if share and tables]
    if not precisions:  # one-way tables only
        return math.sqrt(attributes / (choices.one_way + choices.one_way_again)) / choices.mu
    return 1 / math.sqrt(sum(precisions) / len(precisions))


def expected_of(plan: SynthesisPlan) -> Expected:
    """What a plan is expected to give."""
    spec = plan.spec
    return expected(spec.table.cardinalities, plan.choices, minimum=spec.data.minimum_records, released=spec.records)


@dataclass(frozen=True)
class AccuracySolution:
    """The least epsilon for a stated accuracy."""

    plan: SynthesisPlan  # with the epsilon that was found
    accuracy: float
    found: Expected

    @property
    def limit(self) -> str:
        """What keeps the error from being smaller, in a sentence."""
        if self.found.noise >= self.found.sampling:
            return "Noise limits it: more epsilon, or more records in the table, would bring it down."
        return "Sampling limits it: more released records (synthesis.records), which cost nothing, would bring it down."

    def to_json(self) -> dict[str, Any]:
        """The solution as a JSON object."""
        return {
            "accuracy": self.accuracy,
            "epsilon": self.plan.spec.privacy.epsilon,
            "expected": {"error": self.found.error, "noise": self.found.noise, "sampling": self.found.sampling},
            "limit": self.limit,
            "plan": self.plan.to_json(),
        }

    def explain(self) -> str:
        """The solution for people."""
        found = self.found
        return "\n".join(
            [
                f"Expected    epsilon {self.plan.spec.privacy.epsilon:g}: two-way tables are expected to be within "
                f"{found.error:.4f} of the table in total variation, on average over the pairs ({found.noise:.4f} by "
                f"noise, {found.sampling:.4f} by sampling). {self.limit} Tables that depend on more than "
                "pairs tell can be twice as far off",
                "",
                self.plan.explain(),
            ]
        )


def solve(spec: WholeSynthesisSpec, request: SolveRequest) -> AccuracySolution:
    """The least epsilon, to three digits, at which two-way tables are expected to be within an accuracy. Raises
    SpecError: no accuracy is given, or no epsilon up to `privacy.limit`, or 20, reaches it.
    """
    request.refuse("epsilon", "pass_rate", "public_table", go_with="kind: plausible-deniability")
    accuracy = request.accuracy
    if accuracy is None or not 0 < accuracy < 1:
        raise SpecError("plan: --accuracy, the distance of two-way tables to reach, is a number between 0 and 1")
    most = min(spec.privacy.limit or _LARGEST, _LARGEST)

    def at(epsilon: float) -> SynthesisPlan:
        return plan(change(spec, {"privacy.epsilon": epsilon}))

    least = max(float(PrivacySpec.model_fields["epsilon"].metadata[0].ge), 1e-3)
    epsilon = least
    while expected_of(at(min(epsilon, most))).error > accuracy:
        if epsilon >= most:
            raise SpecError(_out_of_reach(accuracy, expected_of(at(most)), most))
        epsilon *= _STEP
    low, high = epsilon / _STEP, min(epsilon, most)
    while high / low > 1.001 and high > least:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if expected_of(at(middle)).error <= accuracy else (middle, high)
    step = 10.0 ** (math.floor(math.log10(high)) - 2)
    steps = math.ceil(high / step)
    while expected_of(at(epsilon := min(round(steps * step, 9), most))).error > accuracy:
        steps += 1  # a plan measures whole pairs, so that the error is not quite monotone
    made = at(epsilon)
    solution = AccuracySolution(made, accuracy, expected_of(made))
    if request.write:
        title = f"Found by `dpdist plan --accuracy {accuracy:g}`; expected {solution.found.error:.4f}."
        settings, found = request.settings, {"privacy.epsilon": epsilon}
        write_completed(request.write, made.spec, found, source=request.source, settings=settings, title=title)
    return solution


def _out_of_reach(accuracy: float, best: Expected, most: float) -> str:
    if best.sampling > accuracy:
        advice = (
            f"sampling alone leaves {best.sampling:.4f}: release more records (synthesis.records), "
            "or declare fewer values"
        )
    else:
        advice = "noise is what is left: declare a larger data.minimum_records if that is true, or fewer values"
    return f"--accuracy {accuracy:g}: epsilon {most:g} is expected to reach {best.error:.4f}; {advice}"
