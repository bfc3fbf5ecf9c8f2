"""The stages of a histogram release, from a table to its parts, and what is fitted to the noisy counts."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from attempts import attempt_of, run_stages
from reading import readable

from dpdist.errors import CheckFailed, SpecError
from dpdist.families.base.attempt import Attempt
from dpdist.families.histogram.counts import CountPlan, Query, parent_cells
from dpdist.families.histogram.entropy import renyi, shannon
from dpdist.families.histogram.results import Naming, Statistics, fit, released_entropies, tables
from dpdist.families.histogram.spec import CountsSpec
from dpdist.privacy.noise import Noise
from dpdist.publish.parts import STATISTICS
from dpdist.spec.attribute import Attribute
from dpdist.spec.groups import Category
from dpdist.spec.reader import load
from dpdist.spec.schema import Schema

NOISE = Noise(bytes(range(32)))
KEY = bytes(range(32)).hex()
SCHEMA = {
    "attributes": [
        {"name": "age", "kind": "integer", "bounds": [0, 59], "bins": {"count": 30}, "buckets": [*[0] * 10, *[1] * 20]},
        {"name": "sex", "kind": "categorical", "values": ["F", "M"], "missing": {"category": "?"}},
    ]
}
ROWS = 20_000


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    rng = np.random.default_rng(1)
    ages, sexes = rng.integers(0, 60, ROWS), rng.integers(0, 3, ROWS)
    folder = tmp_path_factory.mktemp("people")
    texts = pa.array(np.array(["F", "M", ""])[sexes]).dictionary_encode()
    table = pa.table({"age": ages, "sex": pa.array(texts.to_pylist(), pa.string(), mask=sexes == 2)})
    pq.write_table(table, folder / "people.parquet", row_group_size=3000)
    counts = np.zeros((30, 3), np.int64)
    np.add.at(counts, (ages // 2, sexes), 1)
    return folder, counts


def attempt(folder: Path, tmp_path: Path, *, partitions: int = 3, key: str = KEY, **changes: Any) -> Attempt[Any, Any]:
    tree: dict[str, Any] = {
        "kind": "histogram",
        "name": "h",
        "dataset": "d",
        "schema": SCHEMA,
        "data": {"path": str(folder), "minimum_records": 15_000},
        "output": {"path": str(tmp_path / "out")},
        "privacy": {"epsilon": 1, "delta": 1e-9},
        "histograms": [{"columns": ["age", "sex"]}, {"columns": ["age"]}, {"columns": ["age"], "buckets": True}],
        **changes,
    }
    return attempt_of(load(tree), tmp_path, partitions=partitions, key=key)


def release(made: Attempt[Any, Any]) -> None:
    run_stages(made)


def released(made: Attempt[Any, Any]) -> pa.Table:
    release(made)
    tables = [pq.read_table(pa.BufferReader(made.output.read_bytes(part.name))) for part in made.parts]
    assert [part.rows for part in made.parts] == [table.num_rows for table in tables]
    return pa.concat_tables(tables)


class TestRelease:
    def test_counts(self, people: tuple[Path, np.ndarray], tmp_path: Path) -> None:
        folder, counts = people
        made = attempt(folder, tmp_path)
        table = released(made).to_pylist()
        assert [row["of"] for row in table] == ["age x sex"] * 90 + ["age"] * 30 + ["age (buckets)"] * 2
        assert [row["cell"] for row in table[:4]] == ["0..1 | F", "0..1 | M", "0..1 | ?", "2..3 | F"]
        assert [row["cell"] for row in table[-2:]] == ["0..1 .. 18..19", "20..21 .. 58..59"]
        noisy = np.array([row["noisy"] for row in table])
        truth = np.concatenate([counts.ravel(), counts.sum(axis=1), [counts[:10].sum(), counts[10:].sum()]])
        deviations = np.repeat(made.plan.deviations, [90, 30, 2])  # type: ignore[attr-defined]
        assert 0.3 < np.abs((noisy - truth) / deviations).mean() < 1.5
        assert not np.array_equal(noisy, truth)
        values = np.array([row["value"] for row in table])
        assert (values >= 0).all()
        assert (values == values.round()).all()

    def test_entropies(self, people: tuple[Path, np.ndarray], tmp_path: Path) -> None:
        folder, counts = people
        made = attempt(folder, tmp_path, entropies={"of": [1], "orders": [1, 2], "share": 0.5})
        rows = released(made).to_pylist()[-2:]
        assert [row["statistic"] for row in rows] == ["shannon entropy", "renyi entropy of order 2"]
        truth = shannon(counts.sum(axis=1))
        assert rows[0]["noisy"] == pytest.approx(truth, abs=40 * made.plan.entropies.deviations[0])  # type: ignore[attr-defined]
        assert rows[0]["noisy"] != truth
        assert all(0 <= row["value"] <= np.log2(30) for row in rows)

    @pytest.mark.parametrize("adjacency", ["add/remove", "replacement"])
    def test_an_unconfirmed_minimum_publishes_nothing(
        self, people: tuple[Path, np.ndarray], tmp_path: Path, adjacency: str
    ) -> None:
        folder, _ = people
        made = attempt(
            folder,
            tmp_path,
            entropies={},
            data={"path": str(folder), "minimum_records": 30_000},
            privacy={"epsilon": 1, "delta": 1e-9, "adjacency": adjacency},
        )
        with pytest.raises(CheckFailed, match=r"data\.minimum_records") as caught:
            release(made)
        assert "20000" not in readable(str(caught.value))
        assert not made.output.sizes()

    def test_pml_and_exact_counts(self, people: tuple[Path, np.ndarray], tmp_path: Path) -> None:
        folder, counts = people
        privacy = {"epsilon": 0.5, "mechanism": "pml", "adjacency": "replacement", "alpha": 0.02}
        histograms = [{"columns": ["age"]}]
        noisy = released(attempt(folder, tmp_path / "a", privacy=privacy, histograms=histograms))
        assert noisy["noisy"].to_pylist() != counts.sum(axis=1).tolist()
        privacy |= {"epsilon": 5.0, "accept_no_noise": True}
        exact = released(attempt(folder, tmp_path / "b", privacy=privacy, histograms=histograms))
        assert exact["noisy"].to_pylist() == counts.sum(axis=1).tolist()

    def test_small_parts(self, people: tuple[Path, np.ndarray], tmp_path: Path) -> None:
        folder, _ = people
        schema = {"attributes": [{"name": "age", "kind": "integer", "bounds": [0, 2999]}, SCHEMA["attributes"][1]]}
        made = attempt(
            folder,
            tmp_path,
            schema=schema,
            histograms=[{"columns": ["age"]}],
            output={"path": str(tmp_path / "out"), "rows_per_part": 1000},
        )
        whole = released(made)
        assert [part.rows for part in made.parts] == [1000, 1000, 1000]
        assert whole["cell"].to_pylist() == [str(age) for age in range(3000)]


class TestFit:
    plan = CountPlan((Query((0, 1)), Query((0,)), Query((0,), coarse=True)), (6, 4), ((0, 0, 1, 1, 2, 2), (0, 0, 1, 1)))
    truth = np.arange(24).reshape(6, 4) * 3

    def noisy(self, scale: float = 5.0) -> list[np.ndarray]:
        tables = [self.truth, self.truth.sum(axis=1), self.truth.sum(axis=1).reshape(3, 2).sum(axis=1)]
        return [t + NOISE.discrete_laplace(f"t{i}", t.size, scale=scale).reshape(t.shape) for i, t in enumerate(tables)]

    def fitted(self, **settings: Any) -> list[np.ndarray]:
        return fit(self.noisy(), CountsSpec(**settings), self.plan, variances=[50.0] * 3)[0]

    def test_own_total(self) -> None:
        for table, noisy in zip(self.fitted(), self.noisy(), strict=True):
            assert table.dtype == np.int64
            assert table.min() >= 0
            assert table.sum() == noisy.sum()

    @pytest.mark.parametrize("total", ["common", 900])
    def test_one_total(self, total: Any) -> None:
        sums = {int(table.sum()) for table in self.fitted(total=total)}
        assert len(sums) == 1
        assert sums.pop() == 900 or total == "common"

    @pytest.mark.parametrize("total", ["own", 900])
    def test_hierarchy_of_non_negative_integers(self, total: Any) -> None:
        joint, single, coarse = self.fitted(hierarchies=((0, 1, 2),), total=total)
        assert min(table.min() for table in (joint, single, coarse)) >= 0
        np.testing.assert_array_equal(joint.sum(axis=1), single)
        np.testing.assert_array_equal(single.reshape(3, 2).sum(axis=1), coarse)
        assert coarse.sum() == 900 or total == "own"

    def test_hierarchy_of_real_numbers(self) -> None:
        joint, single, _ = self.fitted(hierarchies=((0, 1),), non_negative=False)
        np.testing.assert_allclose(joint.sum(axis=1), single)

    def test_raw(self) -> None:
        for table, noisy in zip(self.fitted(non_negative=False), self.noisy(), strict=True):
            np.testing.assert_array_equal(table, noisy)

    def test_parent_cells(self) -> None:
        np.testing.assert_array_equal(parent_cells(self.plan, 0, 1), np.repeat(np.arange(6), 4))
        np.testing.assert_array_equal(parent_cells(self.plan, 0, 2), np.repeat(np.arange(3), 8))
        with pytest.raises(SpecError, match="histogram 0 is no sum of cells of histogram 1"):
            parent_cells(self.plan, 1, 0)
        with pytest.raises(SpecError, match="no sum of cells"):
            parent_cells(self.plan, 2, 1)


class TestTables:
    blocks = (
        Statistics("count", "a x b", (("x", "y", "z"), ("1", "2")), np.arange(6.0), np.arange(6.0) + 10),
        Statistics("entropy", "a", (("",),), np.array([0.5]), np.array([0.25])),
        Statistics("count", "c", (tuple("pqrst"),), np.arange(5.0), np.arange(5.0)),
    )

    @pytest.mark.parametrize("rows", [1, 2, 5, 6, 7, 12, 100])
    def test_any_cut_gives_the_same_rows(self, rows: int) -> None:
        made = list(tables(self.blocks, rows=rows))
        assert [table.num_rows for table in made] == [rows] * (12 // rows) + ([12 % rows] if 12 % rows else [])
        whole = pa.concat_tables(made).to_pylist()
        assert [row["cell"] for row in whole] == [
            *("x | 1", "x | 2", "y | 1", "y | 2", "z | 1", "z | 2"),
            *("", "p", "q", "r", "s", "t"),
        ]
        assert [row["noisy"] for row in whole] == [*range(6), 0.5, *range(5)]
        assert [row["value"] for row in whole] == [*range(10, 16), 0.25, *range(5)]
        assert [row["of"] for row in whole] == ["a x b"] * 6 + ["a"] + ["c"] * 5
        assert all(table.schema.equals(STATISTICS) for table in made)

    @pytest.mark.parametrize(
        ("names", "expected"),
        [
            ("values", [(("5", "7", "9", "?"),), (("5 .. 7", "9", "?"),)]),
            ("labels", [(("a", "b", "c", "?"),), (("a .. b", "c", "?"),)]),
            ("codes", [(("0", "1", "2", "3"),), (("0", "1", "2"),)]),
        ],
    )
    def test_cells_are_named_as_the_spec_says(self, names: Any, expected: list[Any]) -> None:
        own = {"values": (5, 7, 9), "labels": ("a", "b", "c"), "buckets": (0, 0, 1)}
        values = Attribute(name="v", kind="categorical", missing=Category(category="?"), **own)  # type: ignore[arg-type]
        plan = CountPlan((Query((0,)), Query((0,), coarse=True)), (4,), ((0, 0, 1, 2),))
        naming = Naming(plan, Schema(attributes=(values,)), names)
        assert [naming.axes(number) for number in range(2)] == expected

    def test_labels_of_bins(self) -> None:
        bins = {"edges": [0, 0.5, 1]}
        number = Attribute.model_validate({"name": "x", "kind": "number", "bounds": [0, 2.5], "bins": bins})
        integer = Attribute.model_validate({"name": "n", "kind": "integer", "bounds": [0, 5], "bins": {"count": 2}})
        naming = Naming(CountPlan((Query((0,)), Query((1,))), (3, 2)), Schema(attributes=(number, integer)))
        assert naming.axes(0) == (("0.0..0.5", "0.5..1.0", "1.0..2.5"),)
        assert naming.axes(1) == (("0..2", "3..5"),)


def test_entropies_of_the_released_counts(people: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    folder, _ = people
    made = attempt(folder, tmp_path, counts={"entropies": [1, 2]})
    rows = released(made).to_pylist()
    values = np.array([row["value"] for row in rows if row["of"] == "age" and row["statistic"] == "count"])
    found = {row["statistic"]: row for row in rows if row["of"] == "age" and row["statistic"] != "count"}
    assert found["shannon entropy of the released counts"]["value"] == pytest.approx(shannon(values))
    assert found["renyi entropy of order 2 of the released counts"]["value"] == pytest.approx(renyi(values, order=2))
    without = attempt(folder, tmp_path / "without")
    assert made.plan.event == without.plan.event


def test_entropies_of_counts_that_are_all_zero() -> None:
    plan, zero = CountPlan((Query((0,)),), (8,)), [np.zeros(8, np.int64)]
    schema = Schema(attributes=(Attribute(name="n", kind="integer", bounds=(0, 7)),))
    assert released_entropies(Naming(plan, schema), zero, (1.0, 0.5))[1].value == pytest.approx([3.0])


def test_no_two_cells_have_the_same_name() -> None:
    axes = (("a", "a |", "a | b", "a\\"), ("b", "| b", "b | c", "\\| b"))
    cells = Statistics("count", "x x y", axes, np.zeros(16), np.zeros(16)).table(0, 16).column("cell").to_pylist()
    assert len(set(cells)) == 16
    assert cells[0] == "a | b"
    alone = Statistics("count", "x", axes[:1], np.zeros(4), np.zeros(4))
    assert alone.table(0, 4).column("cell").to_pylist() == list(axes[0])
