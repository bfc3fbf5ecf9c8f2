"""The audit of private two-stage releases: near what is stated, never above, and broken noise is rejected."""

from dataclasses import replace
from typing import Any

import pytest

from dpdist.errors import SpecError
from dpdist.families.prediction.claims import claims
from dpdist.families.prediction.plan import PrivatePlan, TwoStagePlan, plan
from dpdist.families.prediction.private.statistics import NoisyMarginals
from dpdist.families.prediction.spec import TwoStageSpec
from dpdist.privacy.testing import audit

KEY = bytes(range(32))


def made(privacy: dict[str, Any], **prediction: Any) -> TwoStagePlan:
    attributes = [
        {"name": "x", "kind": "number", "bounds": [0, 1]},
        {"name": "c", "kind": "categorical", "values": ["a", "b"]},
        {"name": "y", "kind": "number", "bounds": [-1, 1]},
    ]
    return plan(
        TwoStageSpec.model_validate(
            {
                "kind": "two-stage",
                "name": "r",
                "dataset": "d",
                "schema": {"attributes": attributes},
                "data": {"path": "x", "minimum_records": 300},
                "output": {"path": "y"},
                "privacy": privacy,
                "prediction": {"response": "y"} | prediction,
            }
        )
    )


@pytest.fixture(scope="module")
def planned() -> PrivatePlan:
    found = made({"guarantee": "dp", "epsilon": 3, "delta": 1e-3}, records=10)
    assert isinstance(found, PrivatePlan)
    return found


@pytest.mark.slow
def test_no_audit_contradicts_a_private_release(planned: PrivatePlan) -> None:
    found = claims(planned)
    assert [claim.name for claim in found] == [
        "two-stage marginals",
        "two-stage correlations",
        "two-stage products",
        "two-stage cross products",
        "two-stage, the whole release",
    ]
    for claim in found:
        finding = audit(claim, runs=600 if claim is found[-1] else 150, key=KEY)
        assert not finding.rejected, claim.name
    assert finding.lower_bound > 0.1 * planned.epsilon  # of the whole release


@pytest.mark.slow
def test_noise_that_is_too_small_is_rejected(planned: PrivatePlan) -> None:
    charge = planned.charge
    small = replace(
        charge,
        marginal=0.25 * charge.marginal,
        correlation=0.25 * charge.correlation,
        product=0.25 * charge.product,
        cross=0.25 * charge.cross,
    )
    (*_, whole) = claims(replace(planned, charge=small))
    assert whole.epsilon == planned.epsilon
    assert audit(whole, runs=1000, key=KEY).rejected


def test_an_audit_runs_the_stage_of_a_release(planned: PrivatePlan, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgotten(counts: list[Any], *, charge: Any, noise: Any) -> NoisyMarginals:
        return NoisyMarginals(counts)

    monkeypatch.setattr(NoisyMarginals, "draw", forgotten)
    assert audit(claims(planned)[0], runs=200, key=KEY).rejected


def test_a_release_that_is_not_private_has_no_audit() -> None:
    with pytest.raises(SpecError, match="nothing to audit"):
        claims(made({"guarantee": "lid", "disclosure": {"lid": 0.5, "eta": 0.01}}))
