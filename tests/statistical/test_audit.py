"""Audits find nothing wrong with the shipped mechanisms, come near what they state, and reject broken ones.

All keys are fixed: an audit gives the same figures every time. Confidence is 99.9 % or more throughout.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.deniability_claims import release_claim, tables_canaries
from releases import KEY, project, table
from scipy.stats import binom

from dpdist.data.inputs import table_source
from dpdist.data.table import open_table
from dpdist.families.base.registry import stages_of
from dpdist.families.base.rehearsal import rehearse, released_codes
from dpdist.families.deniability import deniability, estimation, splits
from dpdist.families.deniability import plan as planning
from dpdist.families.deniability.claims import (
    alike,
    claims,
    even_network,
    records_claim,
    regressed_structure,
    structure_claim,
    tables_claim,
)
from dpdist.families.deniability.deniability import CandidateRecords, Passed, PrivacyTest, SeedSynthesizer
from dpdist.families.deniability.parameters import ParameterPlan, parameter_plan
from dpdist.families.deniability.spec import PlausibleDeniabilitySpec
from dpdist.families.deniability.structure import Score, independent_structure, structure_plan
from dpdist.ledger.keys import KeyRef
from dpdist.lifecycle.run import run_release
from dpdist.privacy import accountant
from dpdist.privacy import testing as auditor
from dpdist.privacy.arrays import joined
from dpdist.privacy.noise import Noise
from dpdist.privacy.testing import Canaries, Claim, Finding, audit, audit_in_one_run, guessing_p_value, table_of
from dpdist.publish.verify import read_release
from dpdist.spec.reader import load
from dpdist.spec.schema import Schema

AUDIT_KEY = bytes(range(32))


def schema(*cardinalities: int) -> Schema:
    return Schema.model_validate(
        {
            "attributes": [
                {"name": f"a{i}", "kind": "categorical", "values": list(range(size))}
                for i, size in enumerate(cardinalities)
            ]
        }
    )


def structure(*, score: Score, epsilon: float = 2.0, delta: float = 1e-6) -> Claim:
    table = schema(2, 3, 3)
    plan = structure_plan(table, minimum_records=50, epsilon=epsilon, delta=delta, score=score)
    return structure_claim(table, plan, delta=delta)


def tables(*cardinalities: int, epsilon: float = 1.0, delta: float = 1e-9) -> Claim:
    table = schema(*cardinalities)
    plan = parameter_plan(table, epsilon=epsilon, delta=delta)
    return tables_claim(table, independent_structure(table), plan, delta=delta)


def regressed(*cardinalities: int, epsilon: float = 1.0, delta: float = 0.0) -> Claim:
    """Count tables where the last attribute is regressed on the one before."""
    table = schema(*cardinalities)
    plan = parameter_plan(table, epsilon=epsilon, delta=delta, regressed=True)
    structure = regressed_structure(table, (len(cardinalities) - 1,))
    return tables_claim(table, structure, plan, delta=delta)


def many_cells(*cardinalities: int, epsilon: float = 1.0, delta: float = 0.0) -> Canaries:
    table = schema(*cardinalities)
    return tables_canaries(table, parameter_plan(table, epsilon=epsilon, delta=delta), delta=delta)


def records(*, k: int, epsilon0: float, count: int = 1, delta: float = 0.05, companions: int | None = None) -> Claim:
    synthesizer = SeedSynthesizer(even_network(schema(3, 4)), (1,))
    test = PrivacyTest(k=k, gamma=2, epsilon0=epsilon0)
    return records_claim(synthesizer, test, records=count, delta=delta, companions=companions)


def run(claim: Claim, *, runs: int = 4000, confidence: float = 0.999) -> Finding:
    return audit(claim, runs=runs, confidence=confidence, key=AUDIT_KEY)


# --- the auditor itself -----------------------------------------------------------------------------------------------


def response(epsilon: float, present: bool) -> Callable[[Noise], float]:
    """Randomised response with exactly this epsilon."""
    truth = 1 / (1 + math.exp(-epsilon))
    return lambda noise: float((noise.words("response", 1)[0] < truth * 2.0**64) == present)


def test_randomised_response_is_measured_from_below_and_nearly() -> None:
    for epsilon in (0.5, 1.0, 3.0):
        claim = Claim(
            name="response", absent=response(epsilon, False), present=response(epsilon, True), epsilon=epsilon
        )
        found = run(claim)
        assert not found.rejected
        assert found.lower_bound > epsilon - 0.3
        assert run(Claim(**{**vars(claim), "epsilon": epsilon - 0.3})).rejected


def test_the_bound_is_right_as_often_as_stated() -> None:
    trials, p, q, confidence = 60, 0.6, 0.2, 0.9
    ours, theirs = np.arange(trials + 1), np.arange(trials + 1)
    bound = auditor._lower_bound(ours[:, None], theirs, trials=trials, delta=0.1, error=(1 - confidence) / 2)
    weight = np.outer(binom.pmf(ours, trials, p), binom.pmf(theirs, trials, q))
    assert weight[bound > math.log((p - 0.1) / q)].sum() <= 1 - confidence
    assert weight[bound > 0.3].sum() > 0.3


@pytest.mark.parametrize("epsilon", [0.3, 1.5])
def test_guesses_of_randomised_responses_attain_their_p_value(epsilon: float) -> None:
    truth, coins = 1 / (1 + math.exp(-epsilon)), 6
    exact = np.zeros(coins + 1)
    for right in product((0, 1), repeat=coins):
        exact[sum(right)] += math.prod(truth if hit else 1 - truth for hit in right)
    for least in range(coins + 1):
        p = guessing_p_value(least, coins, canaries=coins, epsilon=epsilon, delta=0.0)
        assert p == pytest.approx(exact[least:].sum())
        assert guessing_p_value(least, coins, canaries=coins, epsilon=epsilon, delta=1e-3) >= p


def test_a_canary_that_always_shows_costs_delta_in_one_run() -> None:
    """A mechanism that names each canary with probability delta, and shows nothing else."""
    canaries, delta = 200, 0.02
    shown = binom.sf(np.arange(canaries) - 1, canaries, 0.5 + delta / 2)
    for right in (95, 105, 115, 125):
        p = guessing_p_value(right, canaries, canaries=canaries, epsilon=0.0, delta=delta)
        assert p >= shown[right]


def test_audits_are_repeatable_and_say_what_they_did() -> None:
    claim = tables(3)
    first, again, other = run(claim, runs=200), run(claim, runs=200), audit(claim, runs=200, key=bytes(32))
    assert first == again
    assert first != other
    assert first.runs == 400
    assert first.to_json()["verdict"] == "not rejected"
    assert "count tables (laplace)" in table_of([first])
    assert not audit(claim, runs=20).rejected  # a key of its own


@pytest.mark.parametrize(("runs", "confidence"), [(1, 0.999), (100, 1.0), (100, 0.1)])
def test_an_audit_out_of_range_is_refused(runs: int, confidence: float) -> None:
    with pytest.raises(ValueError, match="an audit needs"):
        audit(tables(3), runs=runs, confidence=confidence)
    with pytest.raises(ValueError, match="an audit needs"):
        audit_in_one_run(many_cells(8), runs=runs, confidence=confidence)


def test_a_fixed_threshold_states_nothing_to_audit() -> None:
    test = PrivacyTest(k=3, gamma=2, epsilon0=None)
    with pytest.raises(ValueError, match="fixed threshold"):
        records_claim(SeedSynthesizer(even_network(schema(2, 2)), (1,)), test, records=1, delta=0.1)


# --- the shipped mechanisms -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claim", "near"),
    [
        (lambda: tables(3), 0.8),
        (lambda: tables(3, 3), 0.6),
        (lambda: tables(3, 3, epsilon=2.0), 0.8),
        (lambda: tables(2, 3, 3, 4, 5, delta=0.05), 0.45),
        (lambda: structure(score="cfs", delta=0.05), 0.55),
        (lambda: structure(score="cfs"), 0.4),
        (lambda: structure(score="total-variation"), 0.3),
        (lambda: records(k=3, epsilon0=1), 0.4),
        (lambda: records(k=4, epsilon0=2), 0.5),
        (lambda: records(k=6, epsilon0=1, count=5), 0.2),
        (lambda: records(k=6, epsilon0=1, count=10, delta=0.2), 0.2),
    ],
)
def test_shipped_mechanisms_are_not_rejected(claim: Callable[[], Claim], near: float) -> None:
    found = run(claim())
    assert not found.rejected
    assert found.lower_bound > near * found.epsilon


@pytest.mark.parametrize(("cardinalities", "delta"), [((4096,), 0.0), ((4096, 4096), 0.0), ((4096,), 1e-9)])
def test_one_run_comes_within_a_tenth(cardinalities: tuple[int, ...], delta: float) -> None:
    found = audit_in_one_run(many_cells(*cardinalities, delta=delta), runs=10, key=AUDIT_KEY)
    assert not found.rejected
    assert found.lower_bound > 0.88 * found.epsilon


# --- broken mechanisms ------------------------------------------------------------------------------------------------


@pytest.fixture
def small_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise with a scale 30 % too small."""
    laplace, gaussian = Noise.discrete_laplace, Noise.gaussian_integers
    less = Fraction(7, 10)

    def small_laplace(self: Noise, name: str, count: int, *, scale: Any, start: int = 0) -> Any:
        return laplace(self, name, count, scale=Fraction(scale) * less, start=start)

    def small_gaussian(self: Noise, name: str, count: int, *, sigma: Any, start: int = 0) -> Any:
        return gaussian(self, name, count, sigma=Fraction(sigma) * less, start=start)

    monkeypatch.setattr(Noise, "discrete_laplace", small_laplace)
    monkeypatch.setattr(Noise, "gaussian_integers", small_gaussian)


@pytest.mark.usefixtures("small_noise")
@pytest.mark.parametrize(
    "claim", [lambda: tables(3), lambda: tables(3, 3, epsilon=2.0), lambda: structure(score="cfs", delta=0.05)]
)
def test_a_noise_scale_30_percent_too_small_is_rejected(claim: Callable[[], Claim]) -> None:
    assert run(claim(), runs=8000).rejected


@pytest.mark.usefixtures("small_noise")
def test_a_noise_scale_30_percent_too_small_is_rejected_in_one_run() -> None:
    assert audit_in_one_run(many_cells(4096, 4096), runs=10, confidence=1 - 1e-12, key=AUDIT_KEY).rejected


@pytest.mark.parametrize(("delta", "sampler"), [(1e-9, "discrete_laplace"), (0.05, "gaussian_integers")])
def test_noise_reused_across_two_tables_is_rejected(
    monkeypatch: pytest.MonkeyPatch, delta: float, sampler: str
) -> None:
    draw = getattr(Noise, sampler)
    monkeypatch.setattr(Noise, sampler, lambda self, name, *args, **keywords: draw(self, "noise", *args, **keywords))
    claim = tables(3, 3) if delta < 1e-3 else tables(3, 3, 3, 3, 3, delta=delta)
    assert run(claim, runs=1000, confidence=1 - 1e-9).rejected


def test_a_table_that_is_not_charged_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two tables spends the budget of both."""
    monkeypatch.setattr(ParameterPlan, "scales", lambda self, cells: (1 / self.total,) * len(cells))
    assert run(tables(3, 3), runs=2000).rejected


@pytest.mark.parametrize("delta", [0.0, 0.05])
def test_sums_whose_noise_is_that_of_counts_are_rejected(monkeypatch: pytest.MonkeyPatch, delta: float) -> None:
    """A record moves a sum by 8 here, not by 1."""
    assert not run(regressed(3, 9, delta=delta)).rejected
    scales = ParameterPlan.regression_scales

    def reach_of_one(self: ParameterPlan, scale: float, *, parents: int, reach: int) -> tuple[float, float]:
        return scales(self, scale, parents=parents, reach=1)

    monkeypatch.setattr(ParameterPlan, "regression_scales", reach_of_one)
    assert run(regressed(3, 9, delta=delta)).rejected


@pytest.mark.parametrize("count", [1, 5])
def test_a_threshold_without_noise_is_rejected(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    def exact(self: PrivacyTest, noise: Noise, start: int, stop: int) -> np.ndarray:
        return np.full(stop - start, self.k, np.int64)

    monkeypatch.setattr(PrivacyTest, "thresholds", exact)
    assert run(records(k=6, epsilon0=1, count=count), confidence=1 - 1e-5).rejected


def test_visible_failures_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate that fails leaves a gap: here the code 2, which no seed has."""

    def gaps(cls: type[Passed], candidates: CandidateRecords, passes: np.ndarray, start: int) -> Passed:
        shown = [np.where(passes, column, column.dtype.type(2)) for column in candidates.codes]
        return cls(start + np.arange(len(passes)), shown)

    claim = records(k=5, epsilon0=2, companions=0, delta=0.02)
    assert not run(claim).rejected
    monkeypatch.setattr(deniability.Passed, "of", classmethod(gaps))
    assert run(claim, runs=8000).rejected


# --- whole releases ---------------------------------------------------------------------------------------------------

SIZES = (2, 3, 3)


def small_release(**model: Any) -> PlausibleDeniabilitySpec:
    return load(
        {
            "kind": "plausible-deniability",
            "name": "small",
            "dataset": "small",
            "schema": schema(*SIZES).model_dump(mode="json", exclude_none=True),
            "data": {"path": "unused.parquet", "minimum_records": 4000},
            "output": {"path": "unused"},
            "privacy": {
                "model": {"epsilon": 3, "delta": 1e-6},
                "seed_check_epsilon": 0.3,
                "checked_candidates": 4096,
                "deniability": {"k": 60, "gamma": 2, "epsilon0": 0.25},
            },
            "synthesis": {"records": 2, "omega": 2, "minimum_pass_rate": 0.2},
            **model,
        }
    )


def neighbours() -> tuple[list[np.ndarray], list[np.ndarray]]:
    """4,000 records alike, 118 that share the canary's first attribute only; the canary."""
    companions = [np.full(118, 1, np.uint8), *alike(SIZES[1:], 118)]
    return joined([alike(SIZES, 4000), companions]), alike(SIZES, 1, code=1)


@pytest.fixture
def short_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer records are simulated to weigh parent configurations: post-processing of the noisy tables."""
    monkeypatch.setattr(estimation, "SIMULATED", 1 << 8)


def test_each_mechanism_of_a_plan_is_audited() -> None:
    plan = planning.plan(small_release())
    findings = [run(claim, runs=500) for claim in claims(plan)]
    assert [f.name.split(" (")[0] for f in findings] == ["structure", "count tables", "2 records from seeds"]
    assert not any(f.rejected for f in findings)
    plan = planning.plan(small_release(synthesis={"records": 2}, model={"structure": "independent"}))
    assert len(claims(plan)) == 1


@pytest.mark.usefixtures("short_simulation")
def test_a_whole_release_is_not_rejected() -> None:
    plan = planning.plan(small_release(split={"structure": 0.2, "parameters": 0.4, "seeds": 0.4}))
    found = run(release_claim(plan, *neighbours()), runs=1000)
    assert not found.rejected
    assert found.epsilon == plan.epsilon


@pytest.mark.usefixtures("short_simulation")
def test_a_stage_that_is_not_charged_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = small_release(split={"structure": 0, "parameters": 0.5, "seeds": 0.5}, model={"structure": "independent"})
    plan = planning.plan(spec)
    found = run(release_claim(plan, *neighbours()), runs=1000)
    assert not found.rejected
    assert found.lower_bound > 0.25 * found.epsilon

    split = splits.combined

    def without_parameters(spec: PlausibleDeniabilitySpec, first: Any, second: Any, third: Any) -> Any:
        return split(spec, first, second if third is None else None, third)

    monkeypatch.setattr(splits, "combined", without_parameters)
    uncharged = planning.plan(spec)
    assert uncharged.model == plan.model  # the same noise, so the same releases
    assert found.lower_bound > accountant.epsilon(uncharged.event, delta=plan.delta)


def test_the_audited_release_is_the_published_one(tmp_path: Path) -> None:
    spec = project(
        tmp_path,
        epsilon="1000",
        output__values="codes",
        output__bins="label",
        privacy__accept_per_record=False,
        privacy__seed_check_epsilon=1,
        synthesis__omega=[3, 4],
        synthesis__minimum_pass_rate=0.05,
        synthesis__records=20,
    )
    run_release(spec, fixed_key=KEY)
    published = read_release(spec.output.path)
    whole = open_table(table_source(spec), spec.table, partitions=1)
    codes = encoded(whole)
    planned = planning.plan(spec)
    made = released_codes(rehearse(planned, stages_of(planned), codes, key=KeyRef.fixed(KEY)))
    for name, column in zip(published.column_names, made, strict=True):
        assert published[name].to_pylist() == column.tolist(), name


def encoded(whole: Any) -> list[np.ndarray]:
    from dpdist.data.operators import gather_operator
    from dpdist.families.base.graph import run_pass

    codes: list[np.ndarray] = run_pass(whole, gather_operator())[0]
    assert len(codes[0]) == table(30_000).num_rows
    return codes
