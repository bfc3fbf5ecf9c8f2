"""The epsilon for a stated accuracy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from dpdist.errors import SpecError
from dpdist.families.base.family import SolveRequest
from dpdist.families.synthesis.accuracy import solve
from dpdist.families.synthesis.plan import plan
from dpdist.families.synthesis.spec import WholeSynthesisSpec
from dpdist.spec.reader import load

SIZES = (51, 79, 8, 24, 5, 25, 5, 2, 99, 2, 2)


def spec_of(records: int = 1_200_000, released: int = 1_000_000, epsilon: float = 1.0) -> WholeSynthesisSpec:
    attributes = [{"name": f"a{i}", "kind": "categorical", "values": [*range(size)]} for i, size in enumerate(SIZES)]
    tree = {
        "kind": "synthesis",
        "name": "s",
        "dataset": "d",
        "schema": {"attributes": attributes},
        "data": {"path": "x.csv", "minimum_records": records},
        "output": {"path": "out"},
        "privacy": {"epsilon": epsilon, "delta": 1e-9},
        "synthesis": {"records": released},
    }
    spec = load(tree)
    assert isinstance(spec, WholeSynthesisSpec)
    return spec


def test_more_records_and_more_epsilon_are_expected_to_be_closer() -> None:
    errors = [plan(spec_of(epsilon=epsilon)).expected for epsilon in (0.1, 1.0, 3.0, 8.0)]
    assert [one.error for one in errors] == sorted((one.error for one in errors), reverse=True)
    assert len({one.sampling for one in errors}) == 1
    fewer = plan(spec_of(released=10_000)).expected
    assert fewer.sampling > 3 * errors[1].sampling
    assert fewer.noise == errors[1].noise
    assert plan(spec_of(records=50_000)).expected.noise > 5 * errors[1].noise
    # what a release of the ACS 2024 has: .0181, .0052, .0031, .0023
    for one, real in zip(errors, (0.0181, 0.0052, 0.0031, 0.0023), strict=True):
        assert 0.6 < one.error / real < 1.7


@pytest.mark.parametrize("accuracy", [0.02, 0.006, 0.0035])
def test_the_least_epsilon_reaches_the_accuracy(accuracy: float) -> None:
    request = SolveRequest(accuracy=accuracy, source=Path("unused"))
    found = solve(spec_of(), request)
    assert found.found.error <= accuracy
    less = plan(spec_of(epsilon=0.98 * found.plan.spec.privacy.epsilon)).expected
    assert less.error > accuracy
    assert found.to_json()["epsilon"] == found.plan.spec.privacy.epsilon
    assert ("Noise limits" in found.explain()) == (found.found.noise >= found.found.sampling)


def test_what_cannot_be_reached_is_refused_with_what_to_do() -> None:
    with pytest.raises(SpecError, match=r"sampling alone leaves .*synthesis\.records"):
        solve(spec_of(released=2_000), SolveRequest(accuracy=0.003, source=Path("unused")))
    with pytest.raises(SpecError, match=r"data\.minimum_records"):
        solve(spec_of(records=2_000), SolveRequest(accuracy=0.005, source=Path("unused")))
    for wrong, words in ((None, "--accuracy 0.01 finds"), (0.0, "between 0 and 1"), (1.0, "between 0 and 1")):
        with pytest.raises(SpecError, match=words):
            solve(spec_of(), SolveRequest(accuracy=wrong, source=Path("unused")))


def test_by_the_command_line(tmp_path: Path, dpdist: Callable[..., object]) -> None:
    source, found = tmp_path / "spec.yaml", tmp_path / "found.yaml"
    tree = spec_of().model_dump(mode="json", by_alias=True, exclude_defaults=True)
    source.write_text(yaml.safe_dump(tree))
    shown = dpdist("plan", str(source), "--accuracy", "0.006", "--write", str(found))
    assert "Expected" in shown.out  # type: ignore[attr-defined]
    assert load(found).privacy.epsilon < 1  # type: ignore[attr-defined]
