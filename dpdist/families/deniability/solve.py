"""Finding the parameters of a whole-release guarantee: `dpdist plan --solve`. Touches no record of the table.

Given R, (epsilon, delta) and the declared minimum of records, the solver chooses the shares of the splits, how many
attributes candidates keep of their seeds and in which order, k, epsilon0, the model's epsilon and the checks
(`docs/planning.md`, *How it chooses*). Formulas are guesses from which the accountant is asked: R released records cost
``epsilon ~ (1 + lam) sqrt(2 R ln(1/delta) / (k Z))`` with ``lam = k epsilon0`` above ``ln(1/delta)``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from typing import Any

from dpdist.data.inputs import table_source
from dpdist.data.source import is_input
from dpdist.errors import SpecError
from dpdist.families.base.calibration import GaussianPlan
from dpdist.families.base.family import SolveRequest
from dpdist.families.deniability.expectations import Expectations, Reference, SeedsChoice, stage_epsilon
from dpdist.families.deniability.plan import PlausibleDeniabilityPlan, plan
from dpdist.families.deniability.seed_search import SeedSearch
from dpdist.families.deniability.spec import ALL_RECORDS, PlausibleDeniabilitySpec, Shares
from dpdist.families.deniability.splits import combined, lighter_seeds, plan_model
from dpdist.privacy import accountant
from dpdist.privacy.event import Event
from dpdist.privacy.events import Gaussian
from dpdist.spec.validation import change

_SEED_SHARES = (Fraction(1, 5), Fraction(3, 10), Fraction(2, 5), Fraction(1, 2), Fraction(3, 5))
_STRUCTURE_SHARES = (Fraction(1, 20), Fraction(1, 10), Fraction(1, 5), Fraction(3, 10))
_GAMMA = 1.01  # with one omega all plausible seeds have the same probability
_CLOSE = 1.1
_WAYS = {"all": "all records", "disjoint": "its own split"}


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """One set of parameters and what is expected of it."""

    kept: tuple[str, ...]  # attributes that candidates keep of their seeds
    epsilon: float  # of the whole release
    minimum_pass_rate: float  # minimum_pass_rate, expected_pass_rate: declared, and expected of the reference
    expected_pass_rate: float
    expected_error: float  # see `dpdist.families.deniability.expectations.expected_error`
    settings: Mapping[str, Any]  # settings of the spec by dotted path; empty for the baseline without seeds

    def to_json(self) -> dict[str, Any]:
        """The alternative as a JSON object."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "settings"} | {
            "kept": list(self.kept),
            "k": self.settings.get("privacy.deniability.k"),
            "epsilon0": self.settings.get("privacy.deniability.epsilon0"),
        }


@dataclass(frozen=True, kw_only=True)
class SeedSolution:
    """The completed spec, its plan, and what else there was."""

    plan: PlausibleDeniabilityPlan
    picked: Alternative
    alternatives: tuple[Alternative, ...]  # `picked` among them; the first is the baseline without seeds
    reference: str  # what the expectations rest on
    comparison: str = ""  # what stages on all records, or on splits, are expected to give; empty where nobody asked

    @property
    def spec(self) -> PlausibleDeniabilitySpec:
        """The completed spec."""
        return self.plan.spec

    @property
    def reason(self) -> str:
        """Why this one, in a sentence."""
        seeds = self.plan.seeds
        checked = seeds is not None and seeds.passes is not None
        sure = "a check confirms its pass rate" if checked else "its pass rate holds for every table, without a check"
        return (
            f"Picked: keep {len(self.picked.kept)} ({', '.join(self.picked.kept)}), because it keeps the most of all "
            f"that stay within epsilon {self.spec.privacy.limit:g} and have the least expected two-way error or a "
            f"tenth more, and {sure}."
        )

    def to_json(self) -> dict[str, Any]:
        """The solution as a JSON object."""
        return {
            "reference": self.reference,
            "reason": self.reason,
            "comparison": self.comparison,
            "picked": self.picked.to_json(),
            "alternatives": [one.to_json() for one in self.alternatives],
            "settings": dict(self.picked.settings),
            "plan": self.plan.to_json(),
        }

    @property
    def title(self) -> str:
        """What stands above the completed spec."""
        return f"Found by `dpdist plan --solve`; expectations from {self.reference}.\n{self.reason}"

    def explain(self) -> str:
        """The solution for people."""
        lines = [
            f"Expectations from {self.reference}; delta {self.plan.delta:g}",
            "",
            "     keep      k  epsilon0  epsilon  pass rate: declared  expected  two-way error",
        ]
        for one in self.alternatives:
            mark = "->" if one is self.picked else "  "
            lines.append(
                f"{mark} {len(one.kept):>6}  {one.settings['privacy.deniability.k']:>5,}"
                f"  {one.settings['privacy.deniability.epsilon0']:>8.3g}  {one.epsilon:>7.4g}"
                f"  {one.minimum_pass_rate:>19.3f}  {one.expected_pass_rate:>8.3f}  {one.expected_error:>13.4f}"
                if one.settings
                else f"{mark} {'none':>6}  {'-':>5}  {'-':>8}  {one.epsilon:>7.4g}  {'-':>19}  {'-':>8}"
                f"  {one.expected_error:>13.4f}"
            )
        return "\n".join([*lines, "", f"{self.reason} {self.comparison}".rstrip(), "", self.plan.explain()])


def solve_plan(
    spec: PlausibleDeniabilitySpec,
    *,
    epsilon: float | None = None,
    pass_rate: float | None = None,
    reference: Reference | None = None,
) -> SeedSolution:
    """Find the parameters of a release whose guarantee covers all of its records.

    The spec's records, minimum of records, delta, schema and model are kept; shares, budgets, test, omega, order and
    declared pass rate are replaced. `epsilon` is that of the whole release (default: ``privacy.limit``), `pass_rate`
    the lowest expected one that is acceptable, `reference` public expectations (default: Zipf). Raises SpecError: no
    epsilon is given, or nothing reaches it.
    """
    target = epsilon if epsilon is not None else spec.privacy.limit
    if target is None or not 0 < target <= 100:
        raise SpecError("plan --solve needs an epsilon of the whole release, in (0, 100]: --epsilon or privacy.limit")
    if spec.model.hook is not None:
        raise SpecError("plan --solve: with model.hook nothing is found: it knows networks and pools only")
    if len(spec.table.attributes) < 2:
        raise SpecError("plan --solve: one attribute cannot both be kept and resampled")
    solver = _Solver(spec, target, pass_rate or 0.0, reference or Reference.zipf(spec.table))
    return solver.solve()


def solve(spec: PlausibleDeniabilitySpec, request: SolveRequest) -> SeedSolution:
    """What ``dpdist plan --solve`` finds, written to a file if that is asked for. Raises SpecError: as `solve_plan`, or
    the public table is the one that the spec names; DataError: it cannot be read, or does not follow the schema.
    """
    request.refuse("accuracy", go_with="kind: synthesis")
    if request.public_table and is_input(table_source(spec), request.public_table):
        raise SpecError(
            f"--public-table: {request.public_table} is the table that data.path names, which only a charged release "
            "may read: give a public one, such as last year's"
        )
    public = Reference.table(request.public_table, spec.table) if request.public_table else None
    find = partial(solve_plan, epsilon=request.epsilon, pass_rate=request.pass_rate, reference=public)
    solution, other = find(spec), {"all": "disjoint", "disjoint": "all"}[spec.split.records]
    try:
        error = find(change(spec, {"split": {"records": other}})).picked.expected_error
        words = f"with split.records={other} the expected two-way error is {error:.4f}"
    except SpecError:
        words = f"split.records={other} reaches nothing"
    solution = replace(solution, comparison=f"Here each stage uses {_WAYS[spec.split.records]}; {words}.")
    request.completed(solution.spec, solution.picked.settings, title=solution.title)
    return solution


class _Solver:
    def __init__(self, spec: PlausibleDeniabilitySpec, target: float, pass_rate: float, reference: Reference) -> None:
        self.spec, self.target, self.pass_rate, self.reference = spec, target, pass_rate, reference
        self.delta, self.records = spec.privacy.release_delta, spec.synthesis.records
        self.order = reference.order
        self.names = tuple(spec.table.names[i] for i in self.order)
        self.expected = Expectations(spec, reference, target=target, budget=self._budget)
        self.search = SeedSearch(spec, self.expected)

    def solve(self) -> SeedSolution:
        shares = self._best_shares()
        stage = self._calibrated(shares)
        self.search.tune(shares, stage)
        found = []
        for kept in self.search.choices():
            seeds = self.search.seeds(kept, shares[2], stage)
            if seeds is not None:
                found.append((self._alternative(seeds, shares, stage), seeds))
        suitable = [pair for pair in found if pair[0].expected_pass_rate >= self.pass_rate]
        if not suitable:
            raise self._out_of_reach()
        first, seeds = suitable[_most_kept([one.expected_error for one, _ in suitable])]
        picked, made = self._settled(seeds, shares, stage)
        others = [picked if one is first else one for one, _ in found]
        for scale in (0.5, 2.0):  # the same attributes at other epsilons
            other = self.search.seeds(seeds.kept, shares[2], stage * scale)
            if other is not None:
                others.append(self._alternative(other, shares, stage * scale))
        rest = 1 if shares == ALL_RECORDS else shares[0] + shares[1]
        baseline = Alternative(
            kept=(),
            epsilon=self.target,
            minimum_pass_rate=1.0,
            expected_pass_rate=1.0,
            expected_error=self.expected.error(None, Shares(shares[0] / rest, shares[1] / rest, Fraction(0)), None),
            settings={},
        )
        return SeedSolution(plan=made, picked=picked, alternatives=(baseline, *others), reference=self.reference.source)

    def _shares(self) -> Iterator[Shares]:
        if self.spec.split.records == "all":
            yield ALL_RECORDS
            return
        learned = self.spec.model.structure == "learned"
        for seeds in _SEED_SHARES:
            for part in _STRUCTURE_SHARES if learned else (Fraction(0),):
                yield Shares((1 - seeds) * part, (1 - seeds) * (1 - part), seeds)

    def _best_shares(self) -> Shares:
        """Shares of the least expected error, by the guesses of the module's notes: no accounting."""
        best: list[tuple[float, Shares]] = []
        for kept in self.search.choices():
            found = []
            for shares in self._shares():
                stage = stage_epsilon(shares, self.target)
                seeds = self.search.guess(kept, shares[2], stage)
                if seeds is not None and self.expected.pass_rate(seeds, shares[2]) >= self.pass_rate:
                    found.append((self.expected.error(seeds, shares, stage), shares))
            if not found:
                break
            best.append(min(found))
        if not best:
            raise self._out_of_reach()
        return best[_most_kept([error for error, _ in best])][1]

    def _calibrated(self, shares: Shares) -> float:
        """The stages' epsilon by the accountant, with Gaussian noise in place of the seeds."""
        stage = stage_epsilon(shares, self.target)
        multiplier = GaussianPlan.of(epsilon=stage, delta=self.delta).sigma
        for _ in range(2):
            whole = self._whole(Gaussian(multiplier), shares, stage)
            stage *= self.target / whole
            multiplier *= whole / self.target
        return stage * 0.995

    def _alternative(self, seeds: SeedsChoice, shares: Shares, stage: float, **known: Any) -> Alternative:
        settings = self._settings(seeds, shares, known.get("model", stage))
        event = lighter_seeds(change(self.spec, settings))
        return Alternative(
            kept=self.names[: seeds.kept],
            epsilon=known["epsilon"] if "epsilon" in known else self._whole(event, shares, stage),
            minimum_pass_rate=seeds.minimum_pass_rate,
            expected_pass_rate=self.expected.pass_rate(seeds, shares[2]),
            expected_error=self.expected.error(seeds, shares, stage),
            settings=settings,
        )

    def _settled(
        self, seeds: SeedsChoice, shares: Shares, stage: float
    ) -> tuple[Alternative, PlausibleDeniabilityPlan]:
        """The alternative with all of the budget spent, and its plan."""
        event = lighter_seeds(change(self.spec, self._settings(seeds, shares, stage)))
        spent = self._whole(event, shares, stage)
        for _ in range(3):  # what the seeds leave goes to the model, and what they exceed is taken from it
            if 0.995 * self.target < spent < 0.999 * self.target:
                break
            stage *= math.exp(1.3 * math.log(0.997 * self.target / spent))
            spent = self._whole(event, shares, stage)
        model = plan_model(change(self.spec, self._settings(seeds, shares, stage)), 1.0)
        epsilon = accountant.epsilon(model.event, delta=self.delta)
        for _ in range(4):
            settings = self._settings(seeds, shares, math.floor(1e4 * epsilon) / 1e4)
            made = plan(change(self.spec, settings))
            if made.epsilon <= self.target:
                known = {"epsilon": made.epsilon, "model": settings["privacy.model.epsilon"]}
                return self._alternative(seeds, shares, stage, **known), made
            epsilon *= 0.98 * self.target / made.epsilon
        raise self._out_of_reach()

    def _whole(self, seeds: Event | None, shares: Shares, stage: float) -> float:
        """Epsilon of the release when each stage of the model costs `stage` on its own split."""
        spec = change(self.spec, {"privacy.model.epsilon": stage, **self._split(shares), **self._budget})
        model = plan_model(spec, 1.0)
        event = combined(spec, model.structure_event, model.parameters_event, seeds)
        return accountant.epsilon(event, delta=self.delta)

    @cached_property
    def _budget(self) -> dict[str, Any]:
        return {"privacy.model.delta": self.delta, "privacy.delta": self.delta, "privacy.limit": self.target}

    def _split(self, shares: Shares) -> dict[str, Any]:
        if self.spec.split.records == "all":
            return {"split": {"records": "all"}}
        return {"split": {name: _text(share) for name, share in shares._asdict().items()}}

    def _settings(self, seeds: SeedsChoice, shares: Shares, model: float) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "privacy.model.epsilon": model,
            **self._budget,
            "privacy.seed_check_epsilon": float(f"{seeds.check_epsilon:.3g}"),
            "privacy.deniability.k": seeds.k,
            "privacy.deniability.gamma": _GAMMA,
            "privacy.deniability.epsilon0": seeds.epsilon0,
            "privacy.deniability.test": "randomised",
            "privacy.accept_per_record": False,
            **self._split(shares),
            "model.order": list(self.names),
            "synthesis.omega": len(self.names) - seeds.kept,
            "synthesis.minimum_pass_rate": seeds.minimum_pass_rate,
        }
        if seeds.checked:
            settings["privacy.checked_candidates"] = seeds.checked
        return settings

    def _out_of_reach(self) -> SpecError:
        return SpecError(
            f"plan --solve: no release of {self.records} records from {self.spec.data.minimum_records} stays within "
            f"epsilon {self.target:g} at delta {self.delta:g}"
            + (f" with a pass rate of {self.pass_rate:g}" if self.pass_rate else "")
            + ": release fewer records, allow a larger epsilon or delta, or set synthesis.omega to all"
        )


def _most_kept(errors: Sequence[float]) -> int:
    """Of alternatives that keep more and more: the last whose expected error is close to the least."""
    return max(i for i, error in enumerate(errors) if error <= _CLOSE * min(errors))


def _text(share: Fraction) -> float | str:
    """A share as a decimal where it is one."""
    return float(share) if Fraction(str(float(share))) == share else str(share)
