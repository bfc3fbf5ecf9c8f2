"""Spec, plan and stages of two-stage releases, from a table to its parts; policy and resumption by the whole run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from attempts import attempt_of, run_stages
from cases import SURVEY, survey
from outcomes import states
from releases import fund
from typer.testing import CliRunner

import dpdist
from dpdist.cli import app
from dpdist.cluster.cluster import Cluster
from dpdist.cluster.executor import Executor, InProcess
from dpdist.errors import CheckFailed, GuaranteeRefused, OutOfDomain, SpecError
from dpdist.families.base.attempt import Attempt
from dpdist.families.prediction.columns import snapped
from dpdist.families.prediction.lid.inputs import Disclosed
from dpdist.families.prediction.lid.method import Disclosure, joined
from dpdist.families.prediction.plan import LidPlan, plan
from dpdist.families.prediction.spec import TwoStageSpec, scale_of
from dpdist.families.prediction.stages import SyntheticInputs, TableBlocks
from dpdist.lifecycle.run import run_release
from dpdist.privacy import accountant
from dpdist.privacy.guarantee import LID, DifferentialPrivacy
from dpdist.privacy.noise import Noise
from dpdist.publish.verify import verify
from dpdist.spec.attribute import Attribute
from dpdist.spec.reader import load
from dpdist.storage.store import Store

KEY = bytes(range(32)).hex()
ROWS = 400


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("people")
    pq.write_table(survey(ROWS), folder / "people.parquet", row_group_size=60)
    return folder


LID_PRIVACY = {"guarantee": "lid", "disclosure": {"lid": 0.5, "eta": 0.002}}
DP_PRIVACY = {"guarantee": "dp", "epsilon": 5, "delta": 1e-6}


def spec(folder: Path | str = "people", out: Path | str = "out", *, dp: bool = False, **changes: Any) -> TwoStageSpec:
    prediction: dict[str, Any] = {"response": "spend", "log": {"income": 1000}}
    prediction |= {"records": 700} if dp else {"keep": ["region"]}
    return TwoStageSpec.model_validate(
        {
            "kind": "two-stage",
            "name": "r",
            "dataset": "d",
            "schema": SURVEY,
            "data": {"path": str(folder), "minimum_records": 300},
            "output": {"path": str(out), "rows_per_part": 1000},
            "privacy": (DP_PRIVACY if dp else LID_PRIVACY) | changes.pop("privacy", {}),
            "prediction": prediction | changes,
        }
    )


def attempt(
    folder: Path,
    tmp_path: Path,
    *,
    partitions: int = 3,
    rows_per_block: int = 150,
    executor: Executor | None = None,
    minimum_records: int = 300,
    **changes: Any,
) -> Attempt[Any, Any]:
    made = spec(folder, tmp_path / "out", **changes)
    made = made.model_copy(update={"data": made.data.model_copy(update={"minimum_records": minimum_records})})
    found = attempt_of(made, tmp_path, partitions=partitions, executor=executor, key=KEY)
    if isinstance(found.plan, LidPlan):
        found.plan = replace(found.plan, method=replace(found.plan.method, block_rows=rows_per_block))
    return found


def released(made: Attempt[Any, Any]) -> pa.Table:
    run_stages(made)
    return pa.concat_tables([pq.read_table(made.output.uri + "/" + part.name) for part in made.parts])


EXECUTORS: list[tuple[Executor, int]] = [(InProcess(), 1), (Cluster(), 4)]
"""In process, and on Dask for several partitions."""


@pytest.mark.parametrize("estimator", ["exact", "distributed", "nystroem"])
def test_the_release_is_the_same_for_any_executor_and_partitions(table: Path, tmp_path: Path, estimator: str) -> None:
    settings: dict[str, Any] = {"regression": {"estimator": estimator, "group_rows": 60, "landmarks": 50}}
    if estimator == "exact":  # with all that is measured, and the paper's densities
        bounds = {"lid": 0.5, "eta": 0.002, "response": 0.2}
        settings |= {"density": {"bandwidths": "paper"}, "privacy": {"disclosure": bounds}}
    made = [
        attempt(table, tmp_path / str(n), executor=executor, partitions=partitions, **settings)
        for n, (executor, partitions) in enumerate(EXECUTORS)
    ]
    first, *others = [released(one) for one in made]
    assert first.num_rows == ROWS
    assert all(other.equals(first) for other in others)
    assert len({one.public["alpha"] for one in made}) == 1
    assert len({one.operator["disclosure"]["rows_near"] for one in made}) == 1


@pytest.mark.parametrize("hook", [None, "sklearn.neighbors:KNeighborsClassifier"])
def test_classes_are_the_same_for_any_executor_and_partitions(table: Path, tmp_path: Path, hook: str | None) -> None:
    lid = {"disclosure": {"lid": 1}}
    settings = {"response": "region", "keep": ["spend"], "regression": {"hook": hook}, "privacy": lid}
    first, *others = [
        released(attempt(table, tmp_path / str(n), executor=executor, partitions=partitions, **settings))
        for n, (executor, partitions) in enumerate(EXECUTORS)
    ]
    assert all(other.equals(first) for other in others)
    spend, region = (np.array(first[name].to_pylist()) for name in ("spend", "region"))
    original = survey(ROWS)
    truth = dict(zip(original["spend"].to_pylist(), original["region"].to_pylist(), strict=True))
    same = np.mean([truth[key] == one for key, one in zip(spend, region, strict=True) if key in truth])
    assert same > 0.4  # of three; the spending of one region stands apart, and is kept
    assert ("kernel ridge on classes" in plan(spec(**settings)).explain()) is (hook is None)


def test_records_are_mixed_with_their_synthetic_rows_and_disclose_what_is_measured(table: Path, tmp_path: Path) -> None:
    made = attempt(table, tmp_path)
    found = released(made)
    method, synthetic = made.plan.method, made.result(SyntheticInputs)
    inputs, _ = joined(made.result(TableBlocks).blocks)
    drawn, alpha = np.concatenate(synthetic.rows), synthetic.alpha
    assert 0 < alpha < 1
    assert method.made == (0, 2, 3)  # income, age and grade; region is kept
    income, age, grade = snapped(method.made_scales, alpha * inputs[:, [0, 2, 3]] + (1 - alpha) * drawn).T
    region, *scales = method.scales[1], *method.made_scales
    by_hand = sorted(
        zip(
            region.values(inputs[:, 1]),
            *(scale.values(units) for scale, units in zip(scales, (income, age, grade), strict=True)),
            strict=True,
        )
    )
    codes = zip(
        np.searchsorted(["n", "s", "w"], found["region"].to_pylist()).tolist(),
        found["income"].to_pylist(),
        found["age"].to_pylist(),
        [["low", "mid", "high"].index(g) for g in found["grade"].to_pylist()],
        strict=True,
    )
    assert np.allclose(by_hand, sorted(codes))
    near = int((np.abs(inputs[:, 0] - income) <= 0.002).sum())
    assert made.operator["disclosure"] == {"rows_near": near, "rows": ROWS}
    assert near <= 0.5 * ROWS


def test_what_is_released_keeps_the_regression_and_not_the_order(table: Path, tmp_path: Path) -> None:
    made = released(attempt(table, tmp_path))
    source = survey(ROWS)
    assert sorted(made["region"].to_pylist()) == sorted(source["region"].to_pylist())
    assert made["region"].to_pylist() != source["region"].to_pylist()
    assert not set(made["income"].to_pylist()) & set(source["income"].to_pylist())
    slopes = []
    for each in (source, made):
        rest = np.asarray(each["spend"]) - 200.0 * np.array([region == "s" for region in each["region"].to_pylist()])
        slopes.append(np.polyfit(np.asarray(each["age"]), rest, 1)[0])
    assert slopes[1] == pytest.approx(slopes[0], abs=0.8)
    ages = np.asarray(source["age"]), np.asarray(made["age"])
    # Position says nothing: the correlation of the ages at the same place is noise.
    assert abs(np.corrcoef(*ages)[0, 1]) < 0.2


def test_measured_disclosure_decides(table: Path, tmp_path: Path) -> None:
    made = attempt(table, tmp_path, privacy={"disclosure": {"lid": 0.1, "eta": 0.02}})
    with pytest.raises(CheckFailed, match=r"even with alpha 0.*raise privacy\.disclosure\.lid"):
        released(made)
    assert not made.parts
    made = attempt(table, tmp_path / "fixed", alpha=0.9)
    with pytest.raises(CheckFailed, match=r"lower prediction\.alpha"):
        released(made)
    free = attempt(table, tmp_path / "free", matching="independent")
    released(free)
    assert 0 < free.public["alpha"] < 1


def test_fewer_records_than_declared_publish_nothing(table: Path, tmp_path: Path) -> None:
    made = attempt(table, tmp_path, minimum_records=ROWS + 1)
    with pytest.raises(CheckFailed, match="fewer records"):
        released(made)
    pq.write_table(survey(9), tmp_path / "few.parquet")
    few = attempt(tmp_path / "few.parquet", tmp_path / "few", minimum_records=1)
    with pytest.raises(CheckFailed, match="at least 10"):
        released(few)


def test_a_resumed_run_uses_what_is_stored(table: Path, tmp_path: Path) -> None:
    first = attempt(table, tmp_path)
    whole = released(first)
    again = attempt(table, tmp_path)
    again.output = Store(str(tmp_path / "again"))
    assert released(again).equals(whole)
    stored = Path(first.work.uri) / "alpha.json"
    stored.write_bytes(Disclosed(alpha=0.0, near=0).to_bytes())
    third = attempt(table, tmp_path)
    third.output = Store(str(tmp_path / "third"))
    assert not released(third).equals(whole)
    assert third.public["alpha"] == 0.0


def test_a_users_own_stages(table: Path, tmp_path: Path) -> None:
    hook = {"hook": "dpdist_test_hooks:Constant"}
    module = tmp_path / "dpdist_test_hooks.py"
    module.write_text(
        "import numpy as np\n"
        "class Constant:\n"
        "    def fit(self, x, y): self.value = float(y.max())\n"
        "    def predict(self, x): return np.full(len(x), self.value)\n"
        "def middle(original, rng): return np.full_like(original, 0.5)\n"
        "class Broken(Constant):\n"
        "    def predict(self, x): return np.full(len(x), np.nan)\n"
        "class Fourth(Constant):\n"
        "    def predict(self, x): return np.full(len(x), 3)\n"
        "def broken(original, rng): return original[:-1]\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        settings = {"regression": hook, "alpha": 0, "matching": "independent", "privacy": {"disclosure": {"lid": 1}}}
        made = released(attempt(table, tmp_path / "a", first_stage="dpdist_test_hooks:middle", **settings))
        (spend,) = set(made["spend"].to_pylist())
        assert spend == pytest.approx(max(survey(ROWS)["spend"].to_pylist()))
        assert len(set(made["income"].to_pylist())) == 1
        with pytest.raises(SpecError, match="rows of the shape"):
            released(attempt(table, tmp_path / "b", first_stage="dpdist_test_hooks:broken", **settings))
        with pytest.raises(SpecError, match="one finite number"):
            released(attempt(table, tmp_path / "c", **settings | {"regression": {"hook": "dpdist_test_hooks:Broken"}}))
        classes = settings | {"response": "region", "keep": [], "regression": {"hook": "dpdist_test_hooks:Fourth"}}
        with pytest.raises(SpecError, match="the code of one class"):
            released(attempt(table, tmp_path / "d", **classes))


def test_the_first_stage_of_the_guide_runs(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = Path(__file__).parents[3] / "docs" / "how-to" / "own-stage.md"
    (block,) = re.findall(r"```python\n(.*?)```", guide.read_text(), flags=re.DOTALL)
    (tmp_path / "dpdist_guide.py").write_text(block)
    monkeypatch.syspath_prepend(str(tmp_path))
    made = attempt(table, tmp_path / "a", first_stage="dpdist_guide:resampled")
    made.plan.rehearse_hooks()
    assert released(made).num_rows == ROWS


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"first_stage": "dpdist_rehearsed:three"}, r"callable as three\(original, rng\)"),
        ({"first_stage": "dpdist_rehearsed:failing"}, "made-up rows it failed with ZeroDivisionError"),
        ({"first_stage": "dpdist_rehearsed:short"}, "rows of the shape"),
        ({"first_stage": "dpdist_rehearsed:nans"}, "finite rows"),
        ({"first_stage": "dpdist_rehearsed:nothing"}, "there is no"),
        ({"regression": {"hook": "dpdist_rehearsed:Argument"}}, r"callable as Argument\(\)"),
        ({"regression": {"hook": "dpdist_rehearsed:Unfitted"}}, "made-up rows it failed with AttributeError"),
    ],
)
def test_stages_that_do_not_do_what_they_must_are_refused_before_an_attempt(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    (tmp_path / "dpdist_rehearsed.py").write_text(
        "def three(target, rows, rng): return target\n"
        "def failing(original, rng): return 1 // 0\n"
        "def short(original, rng): return original[:-1]\n"
        "def nans(original, rng): return original * float('nan')\n"
        "class Argument:\n"
        "    def __init__(self, seed): pass\n"
        "class Unfitted:\n"
        "    def predict(self, x): return x[:, 0]\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        made = run_spec(tmp_path, **settings)
        with pytest.raises(SpecError, match=message):
            dpdist.plan(made)
        with pytest.raises(SpecError, match=message):
            run_release(made)
    assert not states(made)


def test_the_disclosure_of_the_response_lowers_alpha_or_refuses(table: Path, tmp_path: Path) -> None:
    def of(share: float | None, name: str, **changes: Any) -> Attempt[Any, Any]:
        bounds = {"lid": 0.5, "eta": 0.002, "response": share}
        made = attempt(table, tmp_path / name, privacy={"disclosure": bounds}, **changes)
        released(made)
        return made

    free, loose = of(None, "free"), of(1.0, "loose")
    assert loose.public["alpha"] == free.public["alpha"]
    assert "responses_near" not in free.operator["disclosure"]
    near = loose.operator["disclosure"]["responses_near"]
    assert [part.sha256 for part in loose.parts] == [part.sha256 for part in free.parts]
    tight = of((near - 0.5) / ROWS, "tight")
    assert tight.public["alpha"] < loose.public["alpha"]
    assert tight.operator["disclosure"]["responses_near"] < near
    with pytest.raises(CheckFailed, match=r"privacy\.disclosure\.response"):
        of((near - 0.5) / ROWS, "fixed", alpha=loose.public["alpha"])
    assert "for no more than 1 of them the response" in loose.plan.guarantees[0].sentence()
    assert "; in the response at most 1" in loose.plan.explain()


def test_the_private_release_reflects_the_table(tmp_path: Path) -> None:
    pq.write_table(survey(20_000), tmp_path / "people.parquet")
    made = released(attempt(tmp_path / "people.parquet", tmp_path / "run", dp=True, records=5000))
    source = survey(20_000)
    assert np.mean(np.asarray(made["age"])) == pytest.approx(np.mean(np.asarray(source["age"])), abs=2)
    assert np.mean(np.asarray(made["spend"])) == pytest.approx(np.mean(np.asarray(source["spend"])), abs=15)
    slopes = [np.polyfit(np.asarray(t["age"]), np.asarray(t["spend"]), 1)[0] for t in (source, made)]
    assert slopes[1] == pytest.approx(slopes[0], rel=0.15)


def test_values_outside_the_domain_are_refused_before_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = survey(ROWS).set_column(3, "age", pa.array(np.full(ROWS, 17)))
    pq.write_table(bad, tmp_path / "bad.parquet")
    for dp in (False, True):
        made = attempt(tmp_path / "bad.parquet", tmp_path / str(dp), dp=dp)
        monkeypatch.setattr(Noise, "_words", lambda *_: pytest.fail("noise was drawn"))
        with pytest.raises(OutOfDomain, match="age"):
            released(made)


def test_plans_say_what_they_promise() -> None:
    published, private = plan(spec()), plan(spec(dp=True))
    assert private.event is not None
    assert published.kind == "lid"
    assert published.event is None
    assert published.guarantees == (LID(bound=0.5, eta=0.002, columns=("income",), original=("region",)),)
    assert published.to_json()["epsilon"] is None
    text = published.explain()
    assert "(two-stage, NOT differentially private)" in text.splitlines()[0]
    assert text.splitlines()[1].startswith("Guarantee   Not differentially private")
    assert "NOT" not in private.explain()
    assert "Original    region" in text
    assert published.public_parameters()["original_columns"] == ["region"]
    assert published.public_parameters()["disclosure"]["not_looked_at"] == ["region", "age", "grade"]
    assert private.kind == "dp"
    assert 4.99 < private.epsilon <= 5
    assert private.epsilon == accountant.epsilon(private.event, delta=1e-6)
    (guarantee,) = private.guarantees
    assert isinstance(guarantee, DifferentialPrivacy)
    assert guarantee.adjacency == "add/remove"
    assert private.public_parameters()["original_columns"] == []
    assert "Original    nothing" in private.explain()
    for made in (published, private):
        json.dumps(made.to_json())
        assert made.released == made.spec.table
        assert made.needs().task_bytes > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dp": True, "response": "region"}, "number or an integer"),
        ({"response": "region", "keep": [], "log": {"region": 1}}, "no order"),
        ({"response": "nothing"}, "no 'nothing'"),
        ({"keep": ["spend"]}, "never kept"),
        ({"keep": ["income", "region", "age", "grade"]}, "at least one input"),
        ({"log": {"region": 1}}, "no order"),
        ({"log": {"income": 0}}, "greater than 0"),
        ({"log": {"income": 1e-320}}, "'income'.*choose a unit nearer"),
        ({"log": {"age": 1e-320}, "dp": True}, "'age'.*choose a unit nearer"),
        ({"first_stage": "gan"}, "module:function"),
        ({"regression": {"width": float("inf")}}, "regression.width\n.*finite"),
        ({"regression": {"penalty": float("inf")}}, "regression.penalty\n.*finite"),
        ({"records": 10}, "belong to guarantee dp"),
        ({"privacy": {"epsilon": 1}}, "it is not DP"),
        ({"privacy": {"disclosure": {"lid": 0.001, "eta": 0.01}}}, "closed form"),
        ({"privacy": {"disclosure": {"lid": 0.1, "columns": ["region"]}}}, "no synthesised ordered input"),
        ({"privacy": {"disclosure": {"lid": 0.1, "eta": 0.01}}, "keep": ["income"]}, "no column has"),
        ({"privacy": {"disclosure": {"lid": 0.5, "response": 0.1}}, "response": "region", "keep": []}, "no order"),
        ({"dp": True, "density": {"bandwidths": "paper"}}, "its own densities"),
        ({"dp": True, "keep": ["region"]}, "nothing original"),
        ({"dp": True, "alpha": 0.2}, "nothing original"),
        ({"dp": True, "first_stage": "uniform"}, "lhs or gaussian-copula"),
        ({"dp": True, "records": None}, "how many records"),
        ({"dp": True, "privacy": {"delta": None}}, "takes epsilon and delta"),
    ],
)
def test_specs_that_contradict_themselves_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        spec(**changes)


def test_the_plan_counts_the_memory_of_large_feature_tables() -> None:
    def task_bytes(**changes: Any) -> int:
        return int(plan(spec(dp=True, **changes)).needs().task_bytes)

    assert 8 * 64 * 16 * 64 < task_bytes() < 80 << 20  # phases of one continuous column alone


def test_scales_of_attributes() -> None:
    binned = Attribute(name="a", kind="integer", bounds=(0, 99), bins={"count": 10})  # type: ignore[arg-type]
    missing = Attribute(name="a", kind="integer", bounds=(0, 9), missing={"category": "?"})  # type: ignore[arg-type]
    assert scale_of(binned).nominal
    assert scale_of(missing).count == 11
    with pytest.raises(ValueError, match="without order"):
        scale_of(Attribute(name="a", kind="categorical", values=tuple(range(300))))


def run_spec(folder: Path, *, guarantees: tuple[str, ...] = ("dp", "lid"), dp: bool = False, **changes: Any) -> Any:
    pq.write_table(survey(ROWS), folder / "people.parquet")
    url = f"sqlite:///{folder}/ledger.db"
    fund(url, "d", epsilon=10, guarantees=guarantees)
    tree = spec(folder / "people.parquet", folder / "release", dp=dp, **changes).model_dump(mode="json", by_alias=True)
    return load(tree | {"ledger": url, "work": str(folder / "work"), "cluster": {"mode": "threads"}})


def test_the_published_method_needs_the_data_sets_permission(tmp_path: Path) -> None:
    with pytest.raises(GuaranteeRefused, match="not 'lid'"):
        run_release(run_spec(tmp_path, guarantees=("dp",)))
    assert not (tmp_path / "release" / "_manifest.json").exists()


def test_the_manifest_says_first_that_it_is_not_private(tmp_path: Path) -> None:
    made = run_spec(tmp_path)
    outcome = run_release(made)
    manifest = (tmp_path / "release" / "_manifest.json").read_text()
    assert manifest.splitlines()[1].strip().startswith('"guarantee": "Not differentially private')
    assert "without differential privacy" in outcome.budget
    report = verify(str(tmp_path / "release"))
    assert report.records == ROWS
    parameters = json.loads(manifest)["parameters"]
    assert parameters["original_columns"] == ["region"]
    assert "rows_near" not in manifest
    assert "as measured in income:" in outcome.guarantee
    assert "Released as they are: region." in outcome.guarantee
    assert run_release(made, attempt="resume").attempt == outcome.attempt
    shown = CliRunner().invoke(app, ["ledger", "show", "d", "--ledger", made.ledger])
    assert "not DP" in shown.stdout  # and not epsilon 0
    for command in (["release", "--once"], ["plan"]):
        (tmp_path / "spec.yaml").write_text(json.dumps(made.model_dump(mode="json", by_alias=True)))
        lines = CliRunner().invoke(app, [*command, str(tmp_path / "spec.yaml")]).stdout.splitlines()
        fields = [line for line in lines[1:] if line and line.split()[0].istitle() and not line.startswith(" ")]
        assert fields[0].startswith("Guarantee   Not differentially private")


def test_a_refused_disclosure_leaves_its_attempt_open(tmp_path: Path) -> None:
    made = run_spec(tmp_path, privacy={"disclosure": {"lid": 0.1, "eta": 0.02}})
    with pytest.raises(CheckFailed):
        run_release(made)
    assert states(made) == ["drawing"]


def test_the_private_variant_is_charged(tmp_path: Path) -> None:
    made = run_spec(tmp_path, guarantees=("dp",), dp=True)
    outcome = run_release(made)
    assert outcome.guarantee.startswith("(")
    assert "epsilon 5" in outcome.budget
    assert verify(str(tmp_path / "release")).records == 700
    with pytest.raises(GuaranteeRefused, match="limit"):
        run_release(made.model_copy(update={"privacy": made.privacy.model_copy(update={"limit": 1.0})}))


def test_no_columns_to_look_at_is_said() -> None:
    made = spec(alpha=0.5, keep=["income"], privacy={"disclosure": {"lid": 0.1, "eta": 0.01}})
    planned = plan(made)
    assert isinstance(planned, LidPlan)
    assert planned.method.disclosure == Disclosure(lid=0.1, eta=0.01, columns=())
    assert "looked at in none" in planned.explain()
    assert "not bounded: no column is looked at" in planned.guarantees[0].sentence()
