"""Finding the parameters of a whole-release guarantee: `dpdist plan --solve`. Touches no record of the table.

Given R, (epsilon, delta) and the declared minimum of records, the solver chooses the shares of the splits, how many
attributes candidates keep of their seeds (m - omega) and in which order, k, epsilon0, the model's epsilon and the
checks. What it expects of the table is public (`dpdist.families.deniability.expectations`).

**Seeds.** With ``lam = k epsilon0``, one released record's loss has a second moment of about ``(1 + lam)^2 / (k Z)``,
so R of them cost ``epsilon ~ (1 + lam) sqrt(2 R ln(1/delta) / (k Z))``: the guess from which the accountant is asked.
lam must exceed ``ln(1/delta)``, so that a candidate which only one seed can give hardly ever passes.

**Stages.** Each stage spends the same epsilon on its own split. For shares q the whole costs epsilon where a stage
costs about `dpdist.families.deniability.expectations.stage_epsilon`; again only a guess for the accountant.

**Declared pass rate.** Without a public table the one that *every* table with so many seeds reaches
(`dpdist.privacy.deniability.certain_mass`): it needs no check and no honest table is refused. With one, nine tenths
of what a table like it would confirm, if that is more.

**Expected error** is the mean total variation distance of the two-way marginals between the law of the released
records and the population (`dpdist.families.deniability.expectations`). It ranks alternatives. What public
expectations cannot tell is how much dependence the model misses and kept attributes have; so of alternatives with
nearly the least error the one that keeps most is picked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from typing import Any

from dpdist.data.inputs import table_source
from dpdist.data.source import is_input
from dpdist.errors import AccountingError, SpecError
from dpdist.families.base.family import SolveRequest
from dpdist.families.deniability.expectations import Expectations, Reference, SeedsChoice, stage_epsilon
from dpdist.families.deniability.plan import PlausibleDeniabilityPlan, plan
from dpdist.families.deniability.solution import Alternative, SeedSolution
from dpdist.families.deniability.spec import ALL_RECORDS, CHECK_SHARE, PlausibleDeniabilitySpec, Shares
from dpdist.families.deniability.splits import combined, lighter, lighter_seeds, plan_model
from dpdist.privacy import accountant
from dpdist.privacy.checks import count_check, expected_lower_bound, pass_check
from dpdist.privacy.deniability import certain_mass
from dpdist.privacy.events import Event, Gaussian, SeedRecords
from dpdist.spec.overrides import change

_SEED_SHARES = (Fraction(1, 5), Fraction(3, 10), Fraction(2, 5), Fraction(1, 2), Fraction(3, 5))
_STRUCTURE_SHARES = (Fraction(1, 20), Fraction(1, 10), Fraction(1, 5), Fraction(3, 10))
_STEEPNESS = (1.1, 1.25, 1.5, 1.8)  # lam over ln(1/delta)
_GAMMA = 1.01  # with one omega all plausible seeds have the same probability
_LEAST_PASS_RATE = 0.02
_MARGIN = 0.9  # of what a table like the public one confirms
_CHECK_SHARES = (0.05, 0.1, 0.2)  # of the seeds' epsilon: each check, where the pass rate is checked
_COUNT_SHARE = 0.01  # where it need not be
_CHECKED = (1 << 18, 1 << 20, 1 << 22)
_ENOUGH = 0.98
_ROUGHLY = 0.85
_CLOSE = 1.1
_WAYS = {"all": "all records", "disjoint": "its own split"}


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

    def solve(self) -> SeedSolution:
        shares = self._best_shares()
        stage = self._calibrated(shares)
        self._tune(shares, stage)
        found = []
        for kept in self._choices():
            seeds = self._seeds(kept, shares[2], stage)
            if seeds is not None:
                found.append((self._alternative(seeds, shares, stage), seeds))
        suitable = [pair for pair in found if pair[0].expected_pass_rate >= self.pass_rate]
        if not suitable:
            raise self._out_of_reach()
        first, seeds = suitable[_most_kept([one.expected_error for one, _ in suitable])]
        picked, made = self._settled(seeds, shares, stage)
        others = [picked if one is first else one for one, _ in found]
        for scale in (0.5, 2.0):  # the same attributes at other epsilons
            other = self._seeds(seeds.kept, shares[2], stage * scale)
            if other is not None:
                others.append(self._alternative(other, shares, stage * scale))
        baseline = Alternative(
            kept=(),
            epsilon=self.target,
            minimum_pass_rate=1.0,
            expected_pass_rate=1.0,
            expected_error=self.expected.error(None, self._without_seeds(shares), None),
            settings={},
        )
        return SeedSolution(plan=made, picked=picked, alternatives=(baseline, *others), reference=self.reference.source)

    # --- shares -------------------------------------------------------------------------------------------------------

    def _shares(self) -> Iterator[Shares]:
        if self.spec.split.records == "all":
            yield ALL_RECORDS
            return
        learned = self.spec.model.structure == "learned"
        for seeds in _SEED_SHARES:
            for part in _STRUCTURE_SHARES if learned else (Fraction(0),):
                yield Shares((1 - seeds) * part, (1 - seeds) * (1 - part), seeds)

    def _without_seeds(self, shares: Shares) -> Shares:
        rest = 1 if shares == ALL_RECORDS else shares[0] + shares[1]
        return Shares(shares[0] / rest, shares[1] / rest, Fraction(0))

    def _best_shares(self) -> Shares:
        """Shares of the least expected error, by the guesses of the module's notes: no accounting."""
        best: list[tuple[float, Shares]] = []
        for kept in self._choices():
            found = []
            for shares in self._shares():
                stage = stage_epsilon(shares, self.target)
                seeds = self._guess(kept, shares[2], stage)
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
        multiplier = accountant.calibrate_gaussian(sensitivity=1.0, epsilon=stage, delta=self.delta)
        for _ in range(2):
            whole = self._whole(Gaussian(multiplier), shares, stage)
            stage *= self.target / whole
            multiplier *= whole / self.target
        return stage * 0.995

    # --- seeds --------------------------------------------------------------------------------------------------------

    steepness, correction = _STEEPNESS[1], 1.0

    def _choices(self) -> Iterator[int]:
        for kept in range(1, len(self.order)):
            if self.expected.combinations(kept) is None:
                return
            yield kept

    def _first_k(self, mass: float, stage: float) -> float:
        steep = self.steepness * -math.log(self.delta)
        return self.correction * (1 + steep) ** 2 * 2 * self.records * -math.log(self.delta) / (stage**2 * mass)

    def _guess(self, kept: int, share: Fraction, stage: float) -> SeedsChoice | None:
        """k without accounting."""
        seeds = self.spec.data.minimum_records * float(share)
        k = self._first_k(seeds, stage)
        for _ in range(4):
            made = self._declared(kept, share, max(math.ceil(k), 2), stage, rough=True)
            if made is None:
                return None
            k = self._first_k(seeds * made.minimum_pass_rate, stage)
        return made

    def _tune(self, shares: Shares, stage: float) -> None:
        """The steepness that costs least at the first guess of k."""
        mass = self.spec.data.minimum_records * float(shares[2])
        k = math.ceil(self._first_k(mass, stage)) + 1

        def cost(steepness: float) -> float:
            return self._cost(k, steepness * -math.log(self.delta) / k, mass)

        costs = {steepness: cost(steepness) for steepness in _STEEPNESS}
        self.steepness = min(costs, key=costs.__getitem__)
        self.correction *= 1.02 * k / self._first_k(mass, costs[self.steepness])

    def _cost(self, k: int, epsilon0: float, mass: float) -> float:
        event = SeedRecords(k=k, gamma=1.0, epsilon0=epsilon0, passing_mass=mass, records=self.records)
        try:
            return accountant.epsilon(lighter(event), delta=self.delta)
        except AccountingError:
            return math.inf

    def _seeds(self, kept: int, share: Fraction, stage: float) -> SeedsChoice | None:
        """The least k within the stage's epsilon, to a few parts in a hundred; None where there is none."""
        guess = self._guess(kept, share, stage)
        k = guess.k if guess is not None else 2
        best = None
        for _ in range(8):
            made = self._declared(kept, share, k, stage)
            if made is None:
                return best
            mass = math.floor(self._minimum(share, made.check_epsilon) * made.minimum_pass_rate)
            checks = made.check_epsilon * (2 if made.checked else 1)
            cost = self._cost(k, made.epsilon0, mass)
            ratio = cost / (stage - checks)
            if ratio <= 1:
                best = made if best is None or made.k < best.k else best
            if 0.96 < ratio <= 1:
                return best
            following = math.ceil(k * min((ratio * 1.015) ** 2, 4.0))
            if following == k:
                return best
            k = max(following, 2)
        return best

    def _minimum(self, share: Fraction, check_epsilon: float) -> int:
        """Lower bound of the seeds that the plan will confirm."""
        delta = self.delta * CHECK_SHARE / 2
        return _confirmed_seeds(self.spec.data.minimum_records, float(share), check_epsilon, delta)

    def _declared(self, kept: int, share: Fraction, k: int, stage: float, *, rough: bool = False) -> SeedsChoice | None:
        """The pass rate to declare, and its check (not yet, when rough); None where it is too small."""
        epsilon0 = float(f"{self.steepness * -math.log(self.delta) / k:.3g}")
        made = SeedsChoice(
            kept=kept, k=k, epsilon0=epsilon0, minimum_pass_rate=0.0, check_epsilon=_COUNT_SHARE * stage, checked=0
        )
        minimum = self._minimum(share, made.check_epsilon)
        if k >= minimum:
            return None
        mass = certain_mass(seeds=minimum - 1, combinations=self.expected.cells(kept), k=k, epsilon0=epsilon0)
        made = replace(made, minimum_pass_rate=math.floor(1000 * mass / minimum) / 1000)
        if self.reference.codes is not None:
            if rough:
                other = replace(made, minimum_pass_rate=_ROUGHLY * self.expected.pass_rate(made, share))
            else:
                other = self._confirmed(made, share, stage)
            made = max(made, other, key=lambda one: one.minimum_pass_rate)
        return made if made.minimum_pass_rate >= _LEAST_PASS_RATE else None

    def _confirmed(self, made: SeedsChoice, share: Fraction, stage: float) -> SeedsChoice:
        """The pass rate that a table like the reference would confirm, less a margin."""
        rate, best, worth = self.expected.pass_rate(made, share), made, 0.0
        for part in _CHECK_SHARES:
            epsilon = part * stage
            minimum = self._minimum(share, epsilon)
            for candidates in _CHECKED:
                if made.k >= minimum:
                    break
                check = pass_check(
                    k=made.k,
                    gamma=1.0,
                    epsilon0=made.epsilon0,
                    passing_mass=0.0,
                    seeds=minimum,
                    candidates=max(candidates, self.records),
                    epsilon=epsilon,
                    delta=self.delta * CHECK_SHARE / 2,
                )
                bound = expected_lower_bound(check, pass_rate=rate) / minimum
                if bound * (1 - 2 * part) ** 2 > worth / _ENOUGH:  # the records cost 1 / sqrt(k Z)
                    worth = bound * (1 - 2 * part) ** 2
                    declared = math.floor(1000 * _MARGIN * bound) / 1000
                    best = replace(made, minimum_pass_rate=declared, check_epsilon=epsilon, checked=candidates)
        return best

    # --- the whole ----------------------------------------------------------------------------------------------------

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


@lru_cache(maxsize=1024)
def _confirmed_seeds(records: int, share: float, epsilon: float, delta: float) -> int:
    try:
        return count_check(records=records, share=share, epsilon=epsilon, delta=delta).minimum
    except AccountingError:  # too few to be confirmed
        return 0


def _text(share: Fraction) -> float | str:
    """A share as a decimal where it is one."""
    return float(share) if Fraction(str(float(share))) == share else str(share)
