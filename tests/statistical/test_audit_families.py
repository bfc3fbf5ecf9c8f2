"""Audits of the histogram and mixing families: nothing wrong with what is shipped, broken mechanisms are rejected.

All keys are fixed: an audit gives the same figures every time.
"""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dpdist.families.base.plan import Plan
from dpdist.families.base.registry import family_of, make_plan
from dpdist.families.histogram.claims import claims as histogram_claims
from dpdist.families.histogram.claims import counts_claim
from dpdist.families.histogram.measurement import Measurement
from dpdist.families.histogram.plan import HistogramPlan
from dpdist.families.mixing.claims import mixtures_claim
from dpdist.families.mixing.mixing_plan import MixingPlan
from dpdist.families.mixing.mixture import Mixer
from dpdist.privacy.mixtures import ClassMixtures
from dpdist.privacy.noise import Noise
from dpdist.privacy.testing import Canaries, Claim, Finding, audit, audit_in_one_run
from dpdist.spec.reader import load

KEY = bytes(range(32))
ATTRIBUTES: list[dict[str, Any]] = [
    {"name": "sex", "kind": "categorical", "values": ["F", "M"]},
    {"name": "edu", "kind": "integer", "bounds": [1, 6]},
    {"name": "t0", "kind": "number", "bounds": [-1, 1]},
    {"name": "t1", "kind": "number", "bounds": [-1, 1]},
]
COMMON: dict[str, Any] = {
    "name": "r",
    "dataset": "d",
    "schema": {"attributes": ATTRIBUTES},
    "data": {"path": "t", "minimum_records": 5000},
    "output": {"path": "o"},
}


def histogram(*, columns: int = 1, **changes: Any) -> HistogramPlan:
    queries = [{"columns": ["sex"]}, {"columns": ["edu"]}][:columns]
    tree = COMMON | {"kind": "histogram", "privacy": {"epsilon": 1}, "histograms": queries} | changes
    plan = make_plan(load({name: value for name, value in tree.items() if value is not None}))
    assert isinstance(plan, HistogramPlan)
    return plan


def curves(adjacency: str, delta: float = 0.05) -> HistogramPlan:
    privacy = {"epsilon": 1, "delta": delta, "adjacency": adjacency}
    return histogram(histograms=None, privacy=privacy, curves={"columns": ["t0", "t1"], "penalty": 0.01, "clip": 1.0})


def mixing(**mixtures: Any) -> MixingPlan:
    classes = {"F": {"minimum": 2000, "records": 1000}, "M": {"minimum": 2000, "records": 1000}}
    tree = COMMON | {
        "kind": "mixing",
        "privacy": {"epsilon": 3, "delta": 1e-5},
        "mixing": {"class": "sex", "classes": classes, "order": 16, **mixtures},
    }
    plan = make_plan(load(tree))
    assert isinstance(plan, MixingPlan)
    return plan


def claims_of(plan: Plan) -> tuple[Claim, ...]:
    return family_of(plan.spec).claims(plan)


def canaries_of(plan: Plan) -> tuple[Canaries, ...]:
    return family_of(plan.spec).canaries(plan)


def one(plan: HistogramPlan, place: int = 0) -> Claim:
    return histogram_claims(plan)[place]


def run(claim: Claim, *, runs: int = 1500, confidence: float = 0.999) -> Finding:
    return audit(claim, runs=runs, confidence=confidence, key=KEY)


PURE = {"epsilon": 1}
GAUSSIAN = {"epsilon": 1, "delta": 0.05, "mechanism": "gaussian"}
REPLACED = {"epsilon": 1, "adjacency": "replacement"}
ENTROPIES = {"orders": [1], "share": "3/4", "mechanism": "laplace"}


LEAKAGE = {"epsilon": 1, "mechanism": "pml", "alpha": 0.2, "adjacency": "replacement"}
SMALL_DELTA = {"epsilon": 2, "delta": 1e-6}


@pytest.mark.parametrize(
    ("claim", "near"),
    [
        (lambda: one(histogram(privacy=PURE)), 0.6),
        (lambda: one(histogram(privacy=REPLACED)), 0.5),
        (lambda: one(histogram(columns=2, privacy=GAUSSIAN)), 0.25),
        (lambda: one(histogram(privacy=LEAKAGE)), 0.5),
        (lambda: one(histogram(privacy=SMALL_DELTA, entropies=ENTROPIES), 1), 0.5),
        (lambda: one(curves("add/remove")), 0.25),
        (lambda: one(curves("replacement")), 0.25),
        (lambda: mixtures_claim(ClassMixtures(minimum=5, order=4, records=1), 0.5, delta=0.1), 0.2),
        (lambda: mixtures_claim(ClassMixtures(minimum=5, order=4, records=3), 1.0, delta=0.05), 0.15),
    ],
)
def test_shipped_mechanisms_are_not_rejected(claim: Callable[[], Claim], near: float) -> None:
    found = run(claim())
    assert not found.rejected
    assert found.lower_bound > near * found.epsilon


def test_each_mechanism_of_a_plan_is_audited() -> None:
    privacy = {"epsilon": 2, "delta": 1e-6}
    plan = histogram(columns=2, privacy=privacy, entropies={"orders": [1]})
    names = [claim.name for claim in claims_of(plan)]
    assert names == ["2 histograms (laplace, add/remove)", "2 entropies (laplace, add/remove)"]
    assert [claim.name for claim in claims_of(curves("add/remove"))] == ["mean of curves (add/remove)"]
    claims = claims_of(mixing())
    mixtures, minimum = (claim.name for claim in claims)  # both classes cost the same
    assert mixtures.endswith("(class F)")
    assert minimum == "minimum of class F"
    claims = claims_of(mixing(scaling="standardised"))
    assert [claim.name for claim in claims][-1] == "means and deviations"
    for claim in claims:
        assert not run(claim, runs=400).rejected
    exact = {"epsilon": 9, "mechanism": "pml", "alpha": 0.5, "adjacency": "replacement", "accept_no_noise": True}
    with pytest.raises(ValueError, match="nothing to audit"):
        counts_claim(histogram(privacy=exact))
    assert claims_of(histogram(privacy=exact)) == ()


def many_cells(**privacy: Any) -> HistogramPlan:
    attributes = [{"name": "x", "kind": "integer", "bounds": [0, 4095]}]
    return histogram(
        schema={"attributes": attributes}, histograms=[{"columns": ["x"]}], privacy={"epsilon": 1} | privacy
    )


def test_one_run_on_all_cells_comes_nearer() -> None:
    (canaries,) = canaries_of(many_cells())
    found = audit_in_one_run(canaries, runs=10, key=KEY)
    assert not found.rejected
    assert found.lower_bound > 0.85 * found.epsilon
    (canaries,) = canaries_of(many_cells(delta=1e-4, mechanism="gaussian"))
    assert not audit_in_one_run(canaries, runs=10, key=KEY).rejected
    assert canaries_of(many_cells(adjacency="replacement")) == ()
    assert canaries_of(mixing()) == ()


# --- broken mechanisms ------------------------------------------------------------------------------------------------


@pytest.fixture
def small_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sampler draws with a scale 30 % too small."""
    for name, parameter in (
        ("discrete_laplace", "scale"),
        ("grid_laplace", "scale"),
        ("gaussian_integers", "sigma"),
        ("grid_gaussian", "sigma"),
    ):
        draw = getattr(Noise, name)

        def smaller(self: Noise, *args: Any, _draw: Any = draw, _name: str = parameter, **keywords: Any) -> Any:
            keywords[_name] = type(keywords[_name])(Fraction(keywords[_name]) * Fraction(7, 10))
            return _draw(self, *args, **keywords)

        monkeypatch.setattr(Noise, name, smaller)


@pytest.mark.usefixtures("small_noise")
def test_a_noise_scale_30_percent_too_small_is_rejected_in_one_run() -> None:
    assert audit_in_one_run(*canaries_of(many_cells()), runs=10, confidence=1 - 1e-9, key=KEY).rejected


@pytest.mark.usefixtures("small_noise")
@pytest.mark.parametrize(
    ("claim", "runs"),
    [
        (lambda: one(histogram(privacy=PURE)), 3000),
        (lambda: one(histogram(privacy=GAUSSIAN | {"delta": 0.1})), 3000),
        (lambda: one(histogram(privacy=SMALL_DELTA, entropies=ENTROPIES), 1), 1000),
        (lambda: one(curves("add/remove", delta=0.1)), 3000),
        (lambda: mixtures_claim(ClassMixtures(minimum=5, order=4, records=1), 0.5, delta=0.1), 1200),
    ],
)
def test_a_noise_scale_30_percent_too_small_is_rejected(claim: Callable[[], Claim], runs: int) -> None:
    assert run(claim(), runs=runs, confidence=0.99).rejected


def test_noise_reused_across_two_histograms_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = Noise.discrete_laplace
    monkeypatch.setattr(Noise, "discrete_laplace", lambda self, name, *args, **kw: draw(self, "noise", *args, **kw))
    attributes = [{"name": name, "kind": "categorical", "values": ["a", "b"]} for name in ("x", "y")]
    queries = [{"columns": ["x"]}, {"columns": ["y", "x"]}]
    plan = histogram(schema={"attributes": attributes}, histograms=queries)
    assert run(counts_claim(plan)).rejected


def test_noise_reused_across_mixtures_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = Noise.grid_gaussian

    def again(self: Noise, name: str, count: int, *, start: int = 0, **keywords: Any) -> np.ndarray:
        return np.tile(draw(self, name, 2, **keywords), count // 2)  # every mixture has the noise of the first

    monkeypatch.setattr(Noise, "grid_gaussian", again)
    claim = mixtures_claim(ClassMixtures(minimum=8, order=4, records=4), 1.0)
    assert run(claim, runs=600, confidence=1 - 1e-6).rejected


def test_a_histogram_that_is_not_charged_is_rejected() -> None:
    """Each of two histograms spends the budget of both."""
    plan = histogram(columns=2)
    assert plan.measurement is not None
    twice: Measurement = replace(plan.measurement, scales=tuple(scale / 2 for scale in plan.measurement.scales))
    assert not run(counts_claim(plan)).rejected
    assert run(counts_claim(replace(plan, measurement=twice))).rejected


def test_a_mixture_of_a_small_class_is_rejected() -> None:
    """The rate of another class: half as many records as are charged for."""
    claim = mixtures_claim(ClassMixtures(minimum=40, order=4, records=2), 1.0, delta=1e-3)
    small = mixtures_claim(ClassMixtures(minimum=5, order=4, records=2), 1.0, delta=1e-3)
    assert run(replace(small, epsilon=claim.epsilon)).rejected


def test_a_stage_that_mixes_without_noise_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mixer, "finish", lambda self, noise, sums, start: sums)
    claim = mixtures_claim(ClassMixtures(minimum=8, order=4, records=1), 1.0)
    assert run(claim, runs=400, confidence=1 - 1e-6).rejected


def test_mixtures_without_noise_on_one_coordinate_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = Mixer.finish

    def bare(self: Mixer, noise: Noise, sums: np.ndarray, start: int) -> np.ndarray:
        made = finish(self, noise, sums, start)
        made[:, 0] = sums[:, 0] / self.order
        return made

    monkeypatch.setattr(Mixer, "finish", bare)
    assert run(
        mixtures_claim(ClassMixtures(minimum=8, order=4, records=1), 1.0), runs=700, confidence=1 - 1e-9
    ).rejected
