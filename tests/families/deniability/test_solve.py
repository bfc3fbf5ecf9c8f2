"""The solver keeps within its budget, its specs run and are confirmed, and wrong declarations are refused."""

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from commands import Command
from releases import project, table

from dpdist.errors import BudgetExceeded, CheckFailed, DataNotFound, SpecError
from dpdist.families.base.family import SolveRequest
from dpdist.families.base.registry import make_plan
from dpdist.families.deniability.expectations import Reference, stage_epsilon
from dpdist.families.deniability.plan import PlausibleDeniabilityPlan, plan
from dpdist.families.deniability.search import entropy_columns
from dpdist.families.deniability.solve import SeedSolution, solve, solve_plan
from dpdist.families.deniability.spec import PlausibleDeniabilitySpec
from dpdist.families.deniability.structure import StructureStatistics, learn_structure
from dpdist.ledger import Books
from dpdist.lifecycle.run import run_release
from dpdist.privacy import accountant
from dpdist.privacy.events import Gaussian, RandomSplit
from dpdist.publish.verify import read_manifest, verify
from dpdist.spec.reader import load

RELEASES = Path(__file__).parents[3] / "deploy" / "releases"


def small(folder: Path, **changes: Any) -> PlausibleDeniabilitySpec:
    """What the solver is asked: 300 of at least 25,000 records."""
    return project(
        folder, **{"synthesis": {"records": 300}, "privacy": {"model": {"epsilon": 1, "delta": 1e-7}}} | changes
    )


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> SeedSolution:
    return solve_plan(small(tmp_path_factory.mktemp("solved")), epsilon=4)


def spent(spec: PlausibleDeniabilitySpec) -> tuple[float, list[str]]:
    ledger = Books.open(spec.ledger, create=False)
    try:
        states = [attempt.state for attempt in ledger.show(spec.dataset).attempts]
        return float(ledger.remaining(spec.dataset).epsilon_spent), states
    finally:
        ledger.close()


def taken(spec: PlausibleDeniabilitySpec, made: PlausibleDeniabilityPlan) -> float:
    """The epsilon at which the filters of the data set admit a release by itself."""
    ledger = Books.open(spec.ledger, create=False)
    portfolio = ledger.show(spec.dataset).dataset.portfolio
    ledger.close()
    epsilon = portfolio.epsilon_of(portfolio.costs(made.event))
    assert epsilon is not None
    return float(epsilon)


def test_the_solution_spends_the_budget_and_no_more(solved: SeedSolution) -> None:
    assert 0.97 * 4 < solved.plan.epsilon <= 4
    assert solved.plan.kind == "dp"
    assert solved.picked.epsilon == solved.plan.epsilon == make_plan(solved.spec).epsilon
    assert solved.spec.privacy.limit == 4
    assert 1 <= len(solved.picked.kept) < 5
    assert solved.picked.kept == tuple(solved.spec.model.order[: len(solved.picked.kept)])
    seeds = solved.plan.seeds
    assert seeds is not None
    assert seeds.passing_mass is not None
    assert seeds.passing_mass <= seeds.minimum * solved.picked.minimum_pass_rate
    assert seeds.passes is None  # the pass rate is that of every table


def test_alternatives_are_told_with_a_reason(solved: SeedSolution) -> None:
    baseline, *others = solved.alternatives
    assert baseline.kept == ()
    assert solved.picked in others
    assert all(0 < one.expected_error < 1 and one.minimum_pass_rate <= one.expected_pass_rate for one in others)
    same = [one for one in others if one.kept == solved.picked.kept]
    order = sorted(same, key=lambda one: one.epsilon)
    assert [one.expected_error for one in order] == sorted((one.expected_error for one in same), reverse=True)
    assert [one.expected_pass_rate for one in order] == sorted(one.expected_pass_rate for one in same)
    text = solved.explain()
    assert text.count("->") == 1
    assert "every table" in solved.reason
    assert solved.reason in text
    body = json.loads(json.dumps(solved.to_json()))
    assert body["plan"]["epsilon"] == solved.plan.epsilon
    assert body["picked"] in body["alternatives"]


def test_the_first_guesses_are_close() -> None:
    """Stages of equal Gaussians: the guess against the accountant."""
    for shares in ((0.1, 0.5, 0.4), (0.2, 0.2, 0.6)):
        for epsilon in (0.5, 2.0):
            stage = stage_epsilon(tuple(Fraction(str(q)) for q in shares), epsilon)
            gaussian = Gaussian(accountant.calibrate_gaussian(sensitivity=1.0, epsilon=stage, delta=1e-9))
            whole = accountant.epsilon(RandomSplit(tuple((q, gaussian) for q in shares)), delta=1e-9)
            assert whole == pytest.approx(epsilon, rel=0.1)


def test_the_table_is_not_touched(tmp_path: Path) -> None:
    spec = small(tmp_path, data__path=str(tmp_path / "nothing.parquet"))
    made = solve_plan(spec, epsilon=4)
    assert made.plan.epsilon <= 4
    with pytest.raises(DataNotFound):
        run_release(made.spec)


def test_what_was_solved_is_released(tmp_path: Path) -> None:
    spec = solve_plan(small(tmp_path), epsilon=4).spec
    outcome = run_release(spec)
    assert verify(spec.output.path).records == 300
    assert outcome.guarantee.startswith("(")
    manifest = read_manifest(spec.output.path)
    assert manifest.guarantees[0]["covers"] == "the whole release"
    assert manifest.guarantees[0]["epsilon"] == make_plan(spec).epsilon <= 4
    epsilon, states = spent(spec)
    assert states == ["committed"]
    assert epsilon <= make_plan(spec).epsilon  # at the larger delta of the data set


def test_a_public_table_lets_more_be_kept(tmp_path: Path) -> None:
    pq.write_table(table(25_000, seed=5), tmp_path / "last-year.parquet")
    spec = small(tmp_path, data__minimum_records=200_000, synthesis={"records": 2_000})
    reference = Reference.table(tmp_path / "last-year.parquet", spec.table)
    made = solve_plan(spec, epsilon=2, reference=reference)
    most = max(made.alternatives, key=lambda other: len(other.kept))
    assert "privacy.checked_candidates" in most.settings  # more than every table has, so it is checked
    assert "last-year" in made.reference
    assert most.minimum_pass_rate < 0.9 * most.expected_pass_rate


def test_the_table_itself_is_no_public_table(tmp_path: Path) -> None:
    spec = small(tmp_path)
    (own,) = spec.data.paths
    (tmp_path / "link.parquet").symlink_to(own)
    for path in (Path(own), tmp_path / "link.parquet"):
        request = SolveRequest(epsilon=4, public_table=path, source=tmp_path / "spec.yaml")
        with pytest.raises(SpecError, match=r"--public-table: .* is the table that data\.path names"):
            solve(spec, request)


def test_a_lowest_pass_rate_is_kept(tmp_path: Path) -> None:
    made = solve_plan(small(tmp_path), epsilon=4, pass_rate=0.97)
    assert made.picked.expected_pass_rate >= 0.97
    with pytest.raises(SpecError, match="pass rate"):
        solve_plan(small(tmp_path), epsilon=4, pass_rate=1.1)


def test_what_cannot_be_reached_is_said(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="release fewer records"):
        solve_plan(small(tmp_path, synthesis={"records": 10_000_000}), epsilon=0.1)
    with pytest.raises(SpecError, match="--epsilon"):
        solve_plan(small(tmp_path))
    one = {"attributes": [{"name": "x", "kind": "integer", "bounds": [0, 9]}]}
    with pytest.raises(SpecError, match="one attribute"):
        solve_plan(small(tmp_path, schema=one, model__structure="independent"), epsilon=1)


def test_the_command_line_writes_a_spec_that_runs(dpdist: Command, tmp_path: Path) -> None:
    spec = small(tmp_path)
    source, found = tmp_path / "asked.yaml", tmp_path / "elsewhere" / "found.yaml"
    found.parent.mkdir()
    source.write_text(yaml.safe_dump(spec.model_dump(mode="json", by_alias=True)))
    asked = ["plan", str(source), "--solve", "--epsilon", "4", "--write", str(found), "--json", "--set", "name=other"]
    done = dpdist(*asked)
    assert done.code == 0, done.err
    body = done.json
    completed = load(found)
    assert completed.name == "other"
    assert completed.fingerprint == body["plan"]["spec_sha256"]
    assert found.read_text().startswith("# Found by")
    with pytest.raises(SpecError, match="cannot be written"):
        solve(spec, SolveRequest(epsilon=4, source=source, write=tmp_path / "no" / "folder.yaml"))


def test_what_was_solved_for_a_cap_fits_in_it(dpdist: Command, tmp_path: Path) -> None:
    """Cap, epsilon and delta are the same: no filter admits it, but a first release may take all of the budget."""
    spec = small(tmp_path, dataset="own")
    source, found = tmp_path / "asked.yaml", tmp_path / "found.yaml"
    source.write_text(yaml.safe_dump(spec.model_dump(mode="json", by_alias=True)))
    for name, cap in (("own", "4"), ("tight", "3")):
        made = dpdist("ledger", "create", name, "--epsilon", cap, "--delta", "1e-7", "--ledger", spec.ledger)
        assert made.code == 0, made.err
    shown = " ".join(dpdist("plan", str(source), "--solve", "--write", str(found), "--epsilon", "4").out.split())
    assert "delta 1e-07" in shown
    assert re.search(r"takes all of it \(a cap of about epsilon 4\.\d+ admits it beside others\)", shown)
    tight = " ".join(dpdist("plan", str(found), "--set", "dataset=tight").out.split())
    assert re.search(r"too little for this release: a cap of about epsilon 4\.\d+ admits it", tight)
    assert dpdist("release", str(found)).code == 0
    after = " ".join(dpdist("plan", str(found), "--set", "name=second").out.split())
    assert "too little for this release" in after
    refused = dpdist("release", str(found), "--set", "name=second", "--set", f"output.path={tmp_path}/second")
    assert refused.code == BudgetExceeded.exit_code
    assert "its first release took all of the cap" in refused.err


@pytest.mark.parametrize(("name", "limit"), [("acs2024-whole.yaml", 2.0), ("census-100m.yaml", 1.0)])
def test_shipped_specs_stay_within_their_epsilon(name: str, limit: float) -> None:
    spec = load(RELEASES / name)
    made = make_plan(spec)
    assert spec.uses_seeds
    assert made.kind == "dp"
    assert made.epsilon < limit
    assert made.delta == 1e-9


@pytest.mark.parametrize("score", ["cfs", "total-variation"])
def test_a_declared_order_is_kept_by_every_structure(tmp_path: Path, score: Any) -> None:
    """What candidates keep is public: the bound of the pass rate rests on it."""
    spec, rng = small(tmp_path), np.random.default_rng(3)
    count = 10 if score == "total-variation" else len(entropy_columns(spec.table))
    edges = 0
    for _ in range(20):
        order = tuple(str(name) for name in rng.permutation(spec.table.names))
        statistics = StructureStatistics(score=score, values=tuple(rng.uniform(0.2, 4, count).tolist()))
        found = learn_structure(statistics, spec.table, records=1e6, table_noise=3.0, order=order)
        assert tuple(spec.table.names[i] for i in found.order) == order
        edges += sum(map(len, found.parents))
    assert edges > 20
    declared = small(tmp_path, model__order=order, synthesis={"records": 300, "omega": 3})
    sizes = dict(zip(spec.table.names, spec.table.cardinalities, strict=True))
    assert declared.kept_combinations == sizes[order[0]] * sizes[order[1]]
    assert small(tmp_path, synthesis={"records": 300, "omega": 3}).kept_combinations is None
    with pytest.raises(SpecError, match="every attribute"):
        small(tmp_path, model__order=order[1:])


# --- the checks -------------------------------------------------------------------------------------------------------


def checked(folder: Path, **changes: Any) -> PlausibleDeniabilitySpec:
    """A release whose pass rate is checked: 99 % of the fixture's candidates pass."""
    setting = {
        "privacy": {
            "model": {"epsilon": 2, "delta": 1e-7},
            "deniability": {"k": 60, "gamma": 2, "epsilon0": 0.35},
            "seed_check_epsilon": 1,
            "checked_candidates": 60_000,
        },
        "synthesis": {"records": 200, "omega": 3, "minimum_pass_rate": 0.75},
    }
    return project(folder, **{**setting, **changes})


def test_honest_declarations_are_confirmed(tmp_path: Path) -> None:
    spec = checked(tmp_path)
    made = plan(spec)
    assert made.seeds is not None
    assert made.seeds.passes is not None
    run_release(spec)
    assert verify(spec.output.path).records == 200
    assert spent(spec)[1] == ["committed"]


@pytest.mark.parametrize(
    ("change", "setting"),
    [
        ({"synthesis__minimum_pass_rate": 0.985}, "minimum_pass_rate"),
        ({"data__minimum_records": 40_000}, "minimum_records"),
        ({"data__minimum_records": 40_000, "model__structure": "independent"}, "minimum_records"),
    ],
)
def test_false_declarations_are_refused_at_exactly_their_charge(
    tmp_path: Path, change: dict[str, Any], setting: str
) -> None:
    spec = checked(tmp_path, **change)
    with pytest.raises(CheckFailed, match=setting) as caught:
        run_release(spec)
    assert not re.search(r"\d", str(caught.value))  # not by how much
    made: PlausibleDeniabilityPlan = plan(spec)
    epsilon, states = spent(spec)
    assert states == ["drawing"]
    assert epsilon == taken(spec, made) > accountant.epsilon(made.event, delta=1e-5)  # what the filters take, no more
    assert not (tmp_path / "release").exists() or not list((tmp_path / "release").rglob("*.*"))
    with pytest.raises(CheckFailed, match=setting):  # again, with the same noise: the same answer, at no charge
        run_release(spec, attempt="resume")
    assert spent(spec) == (epsilon, ["drawing"])
