"""The least epsilon for a stated accuracy of two-way tables: `dpdist plan --accuracy`."""

from __future__ import annotations

import math
from typing import Any

from dpdist.errors import SpecError
from dpdist.families.base.family import FoundPlan, SolveRequest
from dpdist.families.synthesis.plan import SynthesisPlan, plan
from dpdist.families.synthesis.series import best_shares, errors_of
from dpdist.families.synthesis.spec import PrivacySpec, WholeSynthesisSpec
from dpdist.federated.spec import FederatedSpec
from dpdist.model.forecast import Expected
from dpdist.spec.series import SeriesSpec, epsilon_of, step_of
from dpdist.spec.validation import change

_LARGEST = 20.0
_STEP = 1.25
_NEARLY = 1.05  # times the least error: what may be given up to bear a lost client


def solve_shares(spec: WholeSynthesisSpec, series: SeriesSpec, request: SolveRequest) -> FoundPlan:
    """The shares of a series by its priorities."""
    shares = best_shares(series)
    named = {step: str(share) for step, share in shares.items()}
    request.completed(spec, {"series.shares": named}, title="Shares found by `dpdist plan --solve`.")
    epsilon = epsilon_of(series.epsilon or 1.0, spec.privacy.delta, shares[step_of(series.period or series.first)])
    made = plan(change(spec, {"series.shares": named, "privacy.epsilon": epsilon}))
    errors = errors_of(spec, series, shares, lambda one: plan(one).expected.error)
    found = [f"{step} {float(of):.3g} (two-way within {errors[step]:.4f})" for step, of in shares.items()]
    numbers = {"shares": {step: float(of) for step, of in shares.items()}, "errors": errors}
    return FoundPlan(made, f"Shares      {'; '.join(found)}\n\n{made.explain()}", numbers)


def solve_clients(spec: WholeSynthesisSpec, federated: FederatedSpec, request: SolveRequest) -> FoundPlan:
    """The way that bears most losses of clients, of those whose error is nearly the least."""
    listed, fewest = len(federated.clients), federated.colluding + 2
    ways: dict[str, dict[str, Any]] = {
        f"correlated, at least {least}": {"federated.trust": "correlated", "federated.at_least": least}
        for least in sorted({max(fewest, listed - away) for away in (0, 1, 2, 4, 8, listed // 2)})
    }
    ways = {"local": {"federated.trust": "local", "federated.at_least": 1, "federated.colluding": 0}} | ways
    plans = {way: plan(change(spec, changes)) for way, changes in ways.items()}
    errors = {way: made.expected.error for way, made in plans.items()}
    best = next(way for way, error in errors.items() if error <= _NEARLY * min(errors.values()))
    request.completed(spec, ways[best], title=f"Found by `dpdist plan --solve`: {best}.")
    errors = {best: errors.pop(best), **errors}
    first, *others = [f"{way} (two-way within {error:.4f})" for way, error in errors.items()]
    text = f"Clients     {first}; beside {', '.join(others)}\n\n{plans[best].explain()}"
    return FoundPlan(plans[best], text, {"errors": errors})


def solve(spec: WholeSynthesisSpec, request: SolveRequest) -> FoundPlan:
    """The least epsilon, to three digits, at which two-way tables are expected to be within an accuracy. Raises
    SpecError: no accuracy is given, or no epsilon up to `privacy.limit`, or 20, reaches it.
    """
    request.refuse("epsilon", "pass_rate", "public_table", go_with="kind: plausible-deniability")
    accuracy = request.accuracy
    if accuracy is None and spec.series is not None:
        return solve_shares(spec, spec.series, request)
    if accuracy is None and spec.federated is not None:
        return solve_clients(spec, spec.federated, request)
    if accuracy is None:
        raise SpecError("plan --solve: of a synthesis, --accuracy 0.01 finds the epsilon; all else has good defaults")
    if not 0 < accuracy < 1:
        raise SpecError("plan: --accuracy, the distance of two-way tables to reach, is a number between 0 and 1")
    most = min(spec.privacy.limit or _LARGEST, _LARGEST)

    def at(epsilon: float) -> SynthesisPlan:
        return plan(change(spec, {"privacy.epsilon": epsilon}))

    epsilon = least = max(float(PrivacySpec.model_fields["epsilon"].metadata[0].ge), 1e-3)
    while at(min(epsilon, most)).expected.error > accuracy:
        if epsilon >= most:
            raise SpecError(_out_of_reach(accuracy, at(most).expected, most))
        epsilon *= _STEP
    low, high = epsilon / _STEP, min(epsilon, most)
    while high / low > 1.001 and high > least:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if at(middle).expected.error <= accuracy else (middle, high)
    step = 10.0 ** (math.floor(math.log10(high)) - 2)
    steps = math.ceil(high / step)
    while at(epsilon := min(round(steps * step, 9), most)).expected.error > accuracy:
        steps += 1  # a plan measures whole pairs, so that the error is not quite monotone
    made = at(epsilon)
    found = made.expected
    title = f"Found by `dpdist plan --accuracy {accuracy:g}`; expected {found.error:.4f}."
    request.completed(made.spec, {"privacy.epsilon": epsilon}, title=title)
    limit = "Sampling limits it: more released records (synthesis.records), which cost nothing, would bring it down."
    if found.noise >= found.sampling:
        limit = "Noise limits it: more epsilon, or more records in the table, would bring it down."
    expected = {"error": found.error, "noise": found.noise, "sampling": found.sampling}
    text = (
        f"Expected    epsilon {epsilon:g}: two-way tables are expected to be within {found.error:.4f} of the table in "
        f"total variation, on average over the pairs ({found.noise:.4f} by noise, {found.sampling:.4f} by sampling). "
        f"{limit} Tables that depend on more than pairs tell can be twice as far off\n\n{made.explain()}"
    )
    numbers = {"accuracy": accuracy, "epsilon": epsilon, "expected": expected, "limit": limit}
    return FoundPlan(made, text, numbers)


def _out_of_reach(accuracy: float, best: Expected, most: float) -> str:
    advice = "noise is what is left: declare a larger data.minimum_records if that is true, or fewer values"
    if best.sampling > accuracy:
        more = "release more records (synthesis.records), or declare fewer values"
        advice = f"sampling alone leaves {best.sampling:.4f}: {more}"
    return f"--accuracy {accuracy:g}: epsilon {most:g} is expected to reach {best.error:.4f}; {advice}"
