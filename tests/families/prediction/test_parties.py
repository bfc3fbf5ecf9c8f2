"""Several parties in one table: their inputs, their correlated regressions, and what is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from attempts import attempt_of, run_stages
from families.prediction.test_ridge import estimators, sample_of

from dpdist.cluster.executor import Executor
from dpdist.errors import CheckFailed
from dpdist.families.base.attempt import Attempt
from dpdist.families.prediction.columns import Scale
from dpdist.families.prediction.lid import ridge
from dpdist.families.prediction.lid.inputs import InputDistribution, disclosed, near_counts
from dpdist.families.prediction.lid.method import Disclosure, Method
from dpdist.families.prediction.lid.regression import Features
from dpdist.families.prediction.lid.ridge import RadialKernel
from dpdist.families.prediction.plan import plan
from dpdist.families.prediction.spec import TwoStageSpec
from dpdist.families.prediction.stages import SyntheticInputs, TableBlocks
from dpdist.ledger.keys import KeyRef

HEX = bytes(range(32)).hex()
KEY = KeyRef.fixed(HEX)
SITES = ("a", "b", "c")
SIZES = (150, 100, 60)
ROWS = sum(SIZES)


def simulated(rows: int, seed: int, *, differ: float = 1.0, noise: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    """Rows of three parties, the party's number last; the regressions of two differ by waves of this height."""
    rng = np.random.default_rng(seed)
    x, party = rng.random((rows, 2)), rng.integers(0, 3, rows)
    y = np.sin(4 * x[:, 0]) + x[:, 1] + differ * np.cos(3 * x[:, 0] + 2 * party) + differ * party
    return np.column_stack([x, party]), y + rng.normal(0, noise, rows)


@pytest.mark.parametrize("correlation", [0.0, 0.4, 1.0])
def test_the_kernel_is_the_product_of_two(correlation: float) -> None:
    rows, _ = simulated(70, 0)
    kernel = RadialKernel(name="compact", width=1.0, parties=3, correlation=correlation)
    gram, plain = kernel(rows, rows), RadialKernel(name="compact", width=1.0)
    for i, j in product(range(0, 70, 7), repeat=2):
        factor = 1 if rows[i, -1] == rows[j, -1] else correlation
        assert gram[i, j] == pytest.approx(factor * plain(rows[[i], :-1], rows[[j], :-1])[0, 0])
    assert np.linalg.eigvalsh(gram).min() > -1e-10


def test_without_correlation_each_party_is_fitted_by_itself_and_with_all_of_it_all_together() -> None:
    (x, y), (grid, _) = simulated(90, 1), simulated(50, 2)
    penalty, plain = 0.1, RadialKernel(name="matern", width=1.0)

    def fitted_with(correlation: float) -> np.ndarray:
        kernel = RadialKernel(name="matern", width=1.0, parties=3, correlation=correlation)
        return ridge.fit_exact(x, y, kernel=kernel, penalty=penalty).predict(grid)

    alone = np.empty(50)
    for party in range(3):
        mine, asked = x[:, -1] == party, grid[:, -1] == party
        model = ridge.fit_exact(x[mine, :-1], y[mine], kernel=plain, penalty=penalty)
        alone[asked] = model.predict(grid[asked, :-1])
    together = ridge.fit_exact(x[:, :-1], y, kernel=plain, penalty=penalty).predict(grid[:, :-1])
    assert fitted_with(0) == pytest.approx(alone)
    assert fitted_with(1) == pytest.approx(together)
    between = fitted_with(0.5)
    assert np.abs(between - alone).max() > 0.01
    assert np.abs(between - together).max() > 0.01


@pytest.mark.parametrize("correlation", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("classes", [False, True])
def test_all_landmarks_and_one_group_are_exact(correlation: float, classes: bool) -> None:
    x, y = simulated(60, 1)
    responses = np.column_stack([y, y**2]) if classes else y
    kernel = RadialKernel(name="matern", width=1.0, parties=3, correlation=correlation)
    exact = ridge.fit_exact(x, responses, kernel=kernel, penalty=0.1)
    first, second = (
        ridge.nystroem_sums(x[part], responses[part], landmarks=x, kernel=kernel) for part in (slice(25), slice(25, 60))
    )
    nystroem = ridge.fit_nystroem(first + second, landmarks=x, kernel=kernel, penalty=0.1)
    assert nystroem.predict(x) == pytest.approx(exact.predict(x), abs=1e-5)
    assert ridge.average([[exact]]).predict(x) == pytest.approx(exact.predict(x))
    again = ridge.KernelRidge.from_bytes(exact.to_bytes())
    assert np.array_equal(again.predict(x), exact.predict(x))


def test_tuning_leaves_out_rows_also_from_the_means_of_their_parties() -> None:
    x, y = simulated(100, 3)
    tuning = ridge.tune(x, y, kernel="gaussian", width=1.0, penalties=(0.1,), parties=3, correlations=(0.5,))
    kernel, loss = RadialKernel(name="gaussian", width=1.0, parties=3, correlation=0.5), 0.0
    for fold in range(5):
        out = np.arange(100) % 5 == fold
        model = ridge.fit_exact(x[~out], y[~out], kernel=kernel, penalty=0.1)
        loss += ((y[out] - model.predict(x[out])) ** 2).sum()
    assert tuning.error == pytest.approx(loss / 100, rel=1e-6)
    assert tuning.kernel == kernel


@pytest.mark.parametrize(("differ", "least", "most"), [(0.0, 0.97, 1.0), (0.3, 0.25, 0.97), (3.0, 0.0, 0.9)])
def test_cross_validation_finds_how_alike_parties_are(differ: float, least: float, most: float) -> None:
    x, y = simulated(400, 4, differ=differ, noise=0.3)
    tuning = ridge.tune(x, y, parties=3, correlations=ridge.CORRELATIONS)
    assert least <= tuning.kernel.correlation <= most


@pytest.mark.parametrize("correlation", [None, 0.3])
def test_distributed_and_nystroem_are_near_exact_and_every_group_has_every_party(correlation: float | None) -> None:
    x, y = simulated(1500, 5)
    x[:, -1] = np.where(np.arange(1500) % 100 == 0, 2, x[:, -1] % 2)  # 15 rows of the third party
    scales = (*(Scale(name=f"x{i}", low=0, high=1) for i in range(2)), Scale(name="p", low=0, high=2, discrete=True))
    units, features = np.column_stack([x[:, :2], (x[:, 2] + 0.5) / 3]), Features(scales, np.ones(3), party=2)
    assert np.array_equal(features(units), x)
    sample = sample_of(features, [(units, y)], 800)
    models = estimators(features, [(units, y)], sample, (150, 300), (3, correlation))
    found = {estimator: model.predict(x) for estimator, model in models.items()}
    assert all((np.unique(centres[:, -1]) == [0, 1, 2]).all() for centres in models["distributed"].centres)
    for estimator in ("distributed", "nystroem"):
        assert np.mean((found[estimator] - found["exact"]) ** 2) < 0.02 * found["exact"].var()


SCHEMA = {
    "attributes": [
        {"name": "dose", "kind": "number", "bounds": [0, 10]},
        {"name": "site", "kind": "categorical", "values": list(SITES)},
        {"name": "outcome", "kind": "number", "bounds": [-50, 50], "out_of_domain": "clip"},
        {"name": "age", "kind": "integer", "bounds": [0, 99]},
        {"name": "ward", "kind": "integer", "bounds": [0, 99]},
    ]
}


def spec(folder: Path | str = "table", out: Path | str = "out", **changes: Any) -> TwoStageSpec:
    return TwoStageSpec.model_validate(
        {
            "kind": "two-stage",
            "name": "r",
            "dataset": "d",
            "schema": changes.pop("schema", SCHEMA),
            "data": {"path": str(folder), "minimum_records": changes.pop("minimum_records", 100)},
            "output": {"path": str(out), "rows_per_part": 1000},
            "privacy": changes.pop("privacy", {"guarantee": "lid", "disclosure": {"lid": 0.5, "eta": 0.002}}),
            "prediction": {"response": "outcome", "parties": {"column": "site"}} | changes,
        }
    )


DP = {"guarantee": "dp", "epsilon": 5, "delta": 1e-6}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parties": {"column": "nothing"}}, "prediction.parties.column: the schema has no 'nothing'"),
        ({"parties": {"column": "outcome"}}, "the response names no party"),
        ({"parties": {"column": "dose"}}, "'dose' must have 2 to 64 values"),
        ({"parties": {"column": "ward"}}, "'ward' must have 2 to 64 values"),
        ({"parties": {"column": "ward"}, "log": {"ward": 1}}, "prediction.log: 'ward' names the party"),
        ({"parties": {"column": "site", "correlation": 1.5}}, "less than or equal to 1"),
        ({"parties": {"column": "site", "minimum_records": 9}}, "greater than or equal to 10"),
        ({"keep": ["dose", "age", "ward"]}, "at least one input is synthesised"),
        (
            {"parties": {"column": "site", "correlation": 0.5}, "regression": {"hook": "sklearn.svm:SVR"}},
            "regression of your own correlates no parties",
        ),
        ({"privacy": DP, "records": 100}, "prediction.parties: the private variant.*guarantee lid"),
        ({"privacy": {"guarantee": "lid", "disclosure": {"lid": 0.5, "columns": ["site"]}}}, "no synthesised ordered"),
    ],
)
def test_parties_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        spec(**changes)


def test_the_plan_says_who_the_parties_are_and_that_they_are_released() -> None:
    made = plan(spec())
    assert made.guarantees[0].to_json()["original"] == ["site"]
    assert made.public_parameters()["original_columns"] == ["site"]
    assert made.public_parameters()["parties"] == {"column": "site", "correlation": None, "minimum_records": 50}
    text = made.explain()
    assert text.splitlines()[1].startswith("Guarantee   Not differentially private")
    assert "Parties     the 3 values of site" in text
    assert "as cross-validation finds best" in text
    assert "correlation 0.5" in plan(spec(parties={"column": "site", "correlation": 0.5})).explain()
    assert "indicator of each" in plan(spec(regression={"hook": "sklearn.svm:SVR"})).explain()
    kept = plan(spec(keep=["site", "age"]))
    assert kept.public_parameters()["original_columns"] == ["site", "age"]
    without = plan(spec(parties=None))
    assert "parties" not in without.public_parameters()
    assert without.spec.public()["prediction"]["parties"] is None
    assert made.needs().task_bytes > without.needs().task_bytes


def table(sizes: tuple[int, ...] = SIZES) -> pa.Table:
    """Doses of the sites are in thirds of the scale; age and dose go together at site a and against each other at b."""
    rng = np.random.default_rng(7)
    site = np.repeat(np.arange(len(sizes)), sizes)
    age = rng.integers(0, 100, len(site))
    sign = np.array([1, -1, 0])[site]
    dose = np.clip(3.33 * site + 1.5 + sign * (age - 50) / 40 + rng.normal(0, 0.15, len(site)), 0, 10)
    shuffled = rng.permutation(len(site))
    columns = {
        "dose": dose,
        "site": np.array(SITES)[site],
        "outcome": dose + sign * age / 5 + rng.normal(0, 0.5, len(site)),
        "age": age,
        "ward": rng.integers(0, 100, len(site)),
    }
    return pa.table({name: values[shuffled] for name, values in columns.items()})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("sites")
    pq.write_table(table(), made / "table.parquet", row_group_size=60)
    return made


def attempt(
    folder: Path, tmp_path: Path, *, partitions: int = 3, executor: Executor | None = None, **changes: Any
) -> Attempt[Any, Any]:
    return attempt_of(
        spec(folder, tmp_path / "out", **changes), tmp_path, partitions=partitions, executor=executor, key=HEX
    )


def released(made: Attempt[Any, Any]) -> pa.Table:
    run_stages(made)
    return pa.concat_tables([pq.read_table(made.output.uri + "/" + part.name) for part in made.parts])


def columns(found: pa.Table, site: str) -> dict[str, np.ndarray]:
    mine = found.filter(pc.equal(found["site"], site))
    return {name: np.asarray(mine[name]) for name in ("dose", "outcome", "age")}


def test_every_party_has_its_records_inputs_and_regression(folder: Path, tmp_path: Path) -> None:
    lid = {"guarantee": "lid", "disclosure": {"lid": 1.0}}
    found = released(attempt(folder, tmp_path, alpha=0, privacy=lid))
    original = table()
    signs = []
    for site, size in zip(SITES, SIZES, strict=True):
        mine, real = columns(found, site), columns(original, site)
        assert len(mine["dose"]) == size
        assert not set(mine["dose"]) & set(real["dose"])
        assert mine["dose"].mean() == pytest.approx(real["dose"].mean(), abs=0.1)
        assert mine["dose"].std() == pytest.approx(real["dose"].std(), rel=0.2)
        signs.append(np.corrcoef(mine["age"], mine["dose"])[0, 1])
        slope = [np.polyfit(one["age"], one["outcome"], 1)[0] for one in (real, mine)]
        assert slope[1] == pytest.approx(slope[0], abs=0.03)
    assert signs[0] > 0.9
    assert signs[1] < -0.9
    assert abs(signs[2]) < 0.3
    settings = {"alpha": 0, "matching": "independent", "privacy": lid}
    assert columns(released(attempt(folder, tmp_path / "two", **settings)), "a")["dose"].max() < 4
    without = columns(released(attempt(folder, tmp_path / "one", **settings, parties=None, keep=["site"])), "a")
    assert without["dose"].std() > 3 * columns(original, "a")["dose"].std()  # what parties are for


def test_a_partys_distribution_is_that_of_its_records_alone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = np.ones(1)  # folds are by the place of a record in the table, so bandwidths by them would differ
    monkeypatch.setattr("dpdist.families.prediction.first_stage.BANDWIDTHS", one)

    def found(path: Path, name: str, **settings: Any) -> tuple[Attempt[Any, Any], InputDistribution]:
        made = attempt(path, tmp_path / name, **settings)
        run_stages(made)
        return made, InputDistribution.from_bytes(made.work.read_bytes("target.npz"))

    whole, every = found(folder, "every")
    assert [party.records for party in every.parties] == list(SIZES)
    assert whole.result(TableBlocks).records == SIZES
    for site, party in zip(SITES, every.parties, strict=True):
        pq.write_table(table().filter(pc.equal(table()["site"], site)), tmp_path / f"{site}.parquet")
        lid = {"guarantee": "lid", "disclosure": {"lid": 1.0}}
        settings = {"privacy": lid, "parties": None, "keep": ["site"], "minimum_records": 10}
        (expected,) = found(tmp_path / f"{site}.parquet", site, **settings)[1].parties
        for mine, other in zip(party.marginals, expected.marginals, strict=True):
            assert np.array_equal(mine.cumulative, other.cumulative)
        assert np.array_equal(party.correlation, expected.correlation)
    pooled = whole.result(SyntheticInputs).features.deviations
    assert pooled[0] == pytest.approx(np.asarray(table()["dose"]).std() / 10, rel=0.05)


def test_the_disclosure_holds_for_every_party() -> None:
    scales = (Scale(name="x", low=0, high=1), Scale(name="p", low=0, high=1, discrete=True))
    method = Method(
        scales=scales, disclosure=Disclosure(lid=0.25, eta=0.01, columns=(0,)), kept=(1,), party=1, alpha=0.5
    )
    units = np.column_stack([np.linspace(0.2, 0.3, 10), np.repeat([0.25, 0.75], [6, 4])])
    synthetic = units[:, :1] + np.where(np.arange(10) % 2 == 0, 0.015, 0.4)[:, None]  # alpha 0.5 halves the distance
    assert near_counts(method, (units, np.zeros(10)), synthetic).tolist() == [[3], [2]]
    assert near_counts(replace(method, party=None), (units, np.zeros(10)), synthetic).tolist() == [[5]]
    assert disclosed(method, np.array([[250], [2]]), (1000, 10)).near == 252
    with pytest.raises(CheckFailed, match="rows of some party would be near"):
        disclosed(method, np.array([[100], [3]]), (1000, 10))


def test_a_small_party_publishes_nothing_and_is_not_told(tmp_path: Path) -> None:
    pq.write_table(table((150, 100, 47)), tmp_path / "table.parquet")
    made = attempt(tmp_path / "table.parquet", tmp_path)
    with pytest.raises(CheckFailed, match=r"prediction\.parties\.minimum_records") as refused:
        released(made)
    assert set(re.findall(r"\d+", str(refused.value))) == {"10"}  # the least that may be declared
    assert not made.parts
    assert not {"records", "parties"} & set(made.public)
    fewer = attempt(tmp_path / "table.parquet", tmp_path / "fewer", parties={"column": "site", "minimum_records": 47})
    assert released(fewer).num_rows == 297
    pq.write_table(table((150, 100)), tmp_path / "two.parquet")
    with pytest.raises(CheckFailed, match="every value of the column is a party"):
        released(attempt(tmp_path / "two.parquet", tmp_path / "two"))


class Widths:
    """A user's regression, which remembers how many features it saw."""

    seen: int = 0

    def fit(self, inputs: np.ndarray, responses: np.ndarray) -> None:
        type(self).seen = inputs.shape[1]

    def predict(self, inputs: np.ndarray) -> np.ndarray:
        return np.zeros(len(inputs))


def test_a_regression_of_the_users_sees_an_indicator_of_each_party(folder: Path, tmp_path: Path) -> None:
    assert released(attempt(folder, tmp_path, regression={"hook": f"{__name__}:Widths"})).num_rows == ROWS
    assert Widths.seen == 3 + len(SITES)


@pytest.mark.parametrize("first_stage", ["uniform", "gaussian-copula"])
def test_other_first_stages_and_classes_take_parties(tmp_path: Path, first_stage: str) -> None:
    schema = {
        "attributes": [*SCHEMA["attributes"][:4], {"name": "ward", "kind": "categorical", "values": [*range(100)]}]
    }
    pq.write_table(table(), tmp_path / "table.parquet")
    settings = {"response": "ward", "regression": {"width": 1.0, "penalty": 1.0}, "first_stage": first_stage}
    settings["privacy"] = {"guarantee": "lid", "disclosure": {"lid": 1.0}}
    parties = {"column": "site", "correlation": 0.3}
    found = attempt(tmp_path / "table.parquet", tmp_path, parties=parties, schema=schema, **settings)
    assert set(released(found)["ward"].to_pylist()) <= set(range(100))
    assert found.operator["regression"]["kernel"]["correlation"] == 0.3
