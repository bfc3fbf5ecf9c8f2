"""Draws, tables and answers from a whole release, by function and by command."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from published import published
from releases import KEY, table
from typer.testing import CliRunner

from dpdist.accuracy.intervals import CellErrors
from dpdist.cli import app
from dpdist.errors import SpecError
from dpdist.inference.answers import infer, tabulate
from dpdist.inference.comparisons import answer as answers_of
from dpdist.inference.published import Published
from dpdist.inference.records import draw_table
from dpdist.model.account import Measurements


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return published(tmp_path_factory.mktemp("answers"), fixed_key=KEY)  # intervals cover 95 of 100 tables, not all


@pytest.fixture(scope="module")
def opened(folder: Path) -> Published:
    return Published.open(folder)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_draws_are_records_of_the_release_that_meet_the_condition(opened: Published) -> None:
    region = opened.schema.attributes[opened.schema.names.index("region")].values
    drawn = draw_table(opened, 500, where=f"region = '{region[0]}'").table
    assert drawn.num_rows == 500
    assert drawn.column_names == list(opened.schema.names)
    assert set(drawn["region"].to_pylist()) == {region[0]}
    assert draw_table(opened, 500, where=f"region = '{region[0]}'").table.equals(drawn)
    assert not draw_table(opened, 500, where=f"region = '{region[0]}'", seed=1).table.equals(drawn)
    with pytest.raises(SpecError, match="no record of the model meets"):
        draw_table(opened, 5, where=f"region = '{region[0]}' and region != '{region[0]}'")


@pytest.mark.parametrize(
    ("records", "seed", "message"),
    [
        (2.5, 0, "number of records: expected a whole number instead of 2.5"),
        (0, 0, "at least one"),
        (5, "x", "seed .* instead of 'x'"),
    ],
)
def test_how_many_records_are_drawn(opened: Published, records: Any, seed: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        draw_table(opened, records, seed=seed)
    drawn = draw_table(opened, 5, seed=3).table
    assert draw_table(opened, np.int64(5), seed=np.int32(3)).table.equals(drawn)


def test_a_table_has_all_cells_with_intervals(opened: Published) -> None:
    found = tabulate(opened, ["region", "employed"])
    sizes = [opened.schema.attributes[opened.schema.names.index(n)].cardinality for n in ("region", "employed")]
    assert found.num_rows == np.prod(sizes)
    assert found.column_names == ["region", "employed", "count", "standard_error", "low", "high"]
    assert pc.all(pc.less_equal(found["low"], found["count"])).as_py() or pc.min(found["count"]).as_py() < 0
    turned = tabulate(opened, ["employed", "region"])
    key = lambda t: {(r["region"], r["employed"]): r["count"] for r in t.to_pylist()}  # noqa: E731
    assert key(found) == pytest.approx(key(turned))
    with pytest.raises(SpecError, match="did you mean 'region'"):
        tabulate(opened, ["regio"])
    with pytest.raises(SpecError, match="twice"):
        tabulate(opened, ["region", "region"])


def test_answers_cover_the_table(opened: Published) -> None:
    private = table(6_000)
    regions = private["region"].to_pylist()
    name = max(set(regions), key=regions.count)
    answer = infer(opened, f"count where region = '{name}'")
    assert answer.low <= regions.count(name) <= answer.high
    share = infer(opened, f"share where region = '{name}'")
    assert share.estimate == pytest.approx(answer.estimate / opened.records)
    assert answer.high - answer.low < 0.2 * 6_000
    everything = infer(opened, "count")
    assert everything.estimate == pytest.approx(6_000, abs=200)


def test_numbers_have_means_and_quantiles(opened: Published) -> None:
    scores = np.array(table(6_000)["score"].to_pylist(), np.float64)
    (mean,), median = answers_of(opened, "mean score"), infer(opened, "median score")
    assert mean.low - 0.5 <= scores.mean() <= mean.high + 0.5
    assert median.low <= np.median(scores) <= median.high
    high = infer(opened, "quantile 0.9 of score where employed is not missing")
    assert high.estimate >= median.estimate


def test_a_group_has_its_part_of_the_noise_of_values(opened: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where neither errors nor cells were measured: the values that errors of half of its variance bring to a level."""
    noise, nothing = np.linspace(5, 60, 20), lambda self, attributes, counts: np.zeros((2, *np.shape(counts)))
    monkeypatch.setattr(Measurements, "deviations_of", lambda self, attribute, size: noise.copy())
    monkeypatch.setattr(Published, "measured", lambda self, attributes: None)
    monkeypatch.setattr(CellErrors, "reaches", nothing)
    monkeypatch.setattr(CellErrors, "surely", lambda *cells: nothing(*cells)[0])
    of = tuple(opened.schema.names.index(name) for name in ("age", "employed"))
    cells = opened.law.marginal(of) * opened.records
    errors = np.random.default_rng(5).normal(size=(40_000, 20)) * noise * np.sqrt(0.5)
    ours, wider = [], []
    for level in (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95):
        for code, value in enumerate(("yes", "no")):
            found = infer(opened, f"quantile {level} age where employed = '{value}'")
            group, part = cells[:, code], cells[:, code] / cells.sum(1)
            moved = np.cumsum(errors * part, axis=1) - level * (errors @ part)[:, None]
            excess, reach = np.cumsum(group) - level * group.sum(), 1.96 * moved.std(0)
            for wide, ends in ((1.0, ours), (1.3, wider)):
                low, high = np.argmax(excess + wide * reach >= 0), np.argmax(excess - wide * reach > 0)
                ends += [found.low == 5 * low, found.high == 5 * high + 4]
    assert all(ours)
    assert not all(wider)


def test_four_attributes_have_no_interval(opened: Published) -> None:
    names = list(opened.schema.names)[:4]
    question = "count where " + " and ".join(f"`{name}` is not missing" for name in names)
    answer = infer(opened, question)
    assert answer.low is None
    assert "four attributes" in answer.note


@pytest.mark.parametrize(
    "question", ["sum score", "mean", "quantile 2 score", "quantile 0.1.2 score", "mean region", "count where"]
)
def test_what_cannot_be_answered(opened: Published, question: str) -> None:
    with pytest.raises(SpecError):
        infer(opened, question)


def test_commands(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "drawn.parquet"
    assert "300 rows" in run("draw", str(folder), "--records", "300", "--out", str(out))
    assert pq.read_table(out).num_rows == 300
    (answer,) = json.loads(run("infer", str(folder), "count", "--json"))
    assert answer["question"] == "count"
    assert "95 % interval" in run("infer", str(folder), "mean score")
    rows = json.loads(run("tabulate", str(folder), "region", "--json"))
    assert {"region", "count", "standard_error", "low", "high"} == set(rows[0])
    assert "Recomputed  all 2,500 records" in run("verify", str(folder), "--recompute")
    assert json.loads(run("verify", str(folder), "--recompute", "--json"))["recomputed"]["parts"] == 3


READER = """
import sys

sys.modules.update(dict.fromkeys(("fcntl", "grp", "pwd", "resource", "termios"), None))  # as on Windows
import dpdist

path, region = sys.argv[1:]
release = dpdist.open_release(path)
assert len(release.to_pandas()) == release.verify().records == dpdist.verify(path).records == 2_500
assert set(release.sample(20, where=f"region = '{region}'")["region"]) == {region}
assert release.tabulate("region").num_rows == len(set(release.tabulate("region")["region"].to_pylist()))
assert release.infer("count")[0].high > 0
sys.argv = ["dpdist", "verify", path, "--recompute"]
from dpdist.cli import main

main()
"""


def test_a_release_is_read_where_only_windows_modules_are(folder: Path, opened: Published) -> None:
    region = opened.schema.attributes[opened.schema.names.index("region")].values
    command = [sys.executable, "-c", READER, str(folder), str(region[0])]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Recomputed  all 2,500 records" in done.stdout
