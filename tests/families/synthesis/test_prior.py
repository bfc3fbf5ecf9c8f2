"""A public table as a prior."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from releases import SCHEMA, table
from syntheses import learn

import dpdist
from dpdist.data.count import pair_counts
from dpdist.errors import ReleaseConflict, SpecError
from dpdist.families.base.registry import make_plan
from dpdist.families.synthesis.prior import read_prior
from dpdist.inference.records import recompute
from dpdist.ledger import Books
from dpdist.lifecycle.run import Run, run_release
from dpdist.model.choices import choose, with_prior
from dpdist.privacy.noise import Noise
from dpdist.publish.verify import read_manifest
from dpdist.spec.contract import Contract
from dpdist.spec.reader import load

KEY = Noise(bytes(range(32)))
CARDS = (6, 5, 8, 3)


def records(rows: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    a = rng.integers(0, 6, rows)
    b = np.minimum(a, 4)
    c = np.where(rng.random(rows) < 0.8, a + 1, rng.integers(0, 8, rows))
    return [column.astype(np.uint8) for column in (a, b, c, (b + c) % 3)]


def error(prior: list[np.ndarray] | None) -> float:
    """Mean distance of a model's pairs to a table of 3,000 records of which one-way tables alone are measured."""
    counts, mu = pair_counts(records(3000, 1), CARDS), 0.5
    choices = with_prior(choose(CARDS, records=3000, mu=mu), 4)
    choices = replace(
        choices, one_way=0.9, one_way_again=0.0, pairs=0.0, rounds=0, picks=0.0, rake=0.0, misfit=0.0, balance=1
    )
    public = pair_counts(prior, CARDS) if prior is not None else None
    learned = learn(counts, choices=choices, noise=KEY, drawing=KEY, prior=public)
    shares = learned.fitted.expected / 2.0**40
    truth = np.concatenate([counts.pair(i, j).ravel() for i in range(4) for j in range(i + 1, 4)]) / 3000
    assert [name for name, _ in learned.report["account"]] == ["one-way"]
    return float(np.abs(shares - truth).sum() / 2 / 6)


def test_the_model_starts_from_the_prior_at_no_cost() -> None:
    """What pairs say comes from a public table of other records; of one without dependence nothing is to be had."""
    without, alike = error(None), error(records(20_000, 2))
    assert without > 0.3
    assert alike < 0.3 * without
    shuffled = [np.random.default_rng(i).permutation(column) for i, column in enumerate(records(20_000, 2))]
    assert error(shuffled) == pytest.approx(without, rel=0.05)


def test_pairs_that_differ_from_the_prior_are_measured() -> None:
    """A prior of another dependence: with a budget for pairs the model is that of the table."""
    other = records(20_000, 2)
    other[2] = (other[2] + 3) % 8
    counts = pair_counts(records(20_000, 1), CARDS)
    choices = with_prior(choose(CARDS, records=20_000, mu=0.5), 4)
    prior = pair_counts(other, CARDS)
    choices = replace(choices, rake=0.0, misfit=0.0, balance=1)
    learned = learn(counts, choices=choices, noise=KEY, drawing=KEY, prior=prior)
    truth = np.concatenate([counts.pair(i, j).ravel() for i in range(4) for j in range(i + 1, 4)]) / 20_000
    assert np.abs(learned.fitted.expected / 2.0**40 - truth).sum() / 2 / 6 < 0.02


PUBLIC = "Published by the office of statistics, on its site"


def spec_with(folder: Path, prior: str) -> dict[str, Any]:
    data = folder / "table.parquet"
    if not data.exists():
        pq.write_table(table(12_000), data)
    return {
        "kind": "synthesis",
        "name": "first",
        "dataset": "people",
        "schema": SCHEMA,
        "data": {"path": str(data), "minimum_records": 10_000},
        "output": {"path": str(folder / "release")},
        "ledger": f"sqlite:///{folder}/ledger.db",
        "work": str(folder / "work"),
        "cluster": {"mode": "in-process"},
        "privacy": {"epsilon": 4, "delta": 1e-7},
        "model": {"prior": {"public": PUBLIC, "path": prior}},
    }


def test_the_table_itself_is_no_prior(tmp_path: Path) -> None:
    spec_with(tmp_path, "other")
    (tmp_path / "link.parquet").symlink_to(tmp_path / "table.parquet")
    for path in ("table.parquet", "link.parquet", "../" + tmp_path.name + "/table.parquet", "*.parquet", ""):
        with pytest.raises(SpecError, match=r"model\.prior: .* belongs to the table"):
            make_plan(load(spec_with(tmp_path, str(tmp_path / path))))


def test_a_release_with_a_prior_names_it_and_keeps_its_contract(tmp_path: Path) -> None:
    (tmp_path / "public").mkdir()
    prior = tmp_path / "public" / "last-year.parquet"
    pq.write_table(table(8_000), prior)
    spec = load(spec_with(tmp_path, str(prior)))
    assert "Prior" in make_plan(spec).explain()
    contract = Contract.model_validate(
        {
            "schema": spec.table,
            "data": {"path": spec.data.path},
            "minimum_records": 10_000,
            "epsilon": "10",
            "delta": "1e-6",
        }
    )
    assert any("public_tables" in departure for departure in contract.departures(spec, event=None))
    admitted = contract.model_copy(update={"public_tables": (str(tmp_path / "public" / "*"),)})
    assert not admitted.departures(spec, event=None)
    ledger = Books.open(spec.ledger)
    ledger.create_dataset("people", epsilon="10", delta="1e-6")
    ledger.close()
    outcome = run_release(spec)
    assert outcome is not None
    assert outcome.parameters["learned"]["prior"] == {"records": 8_000, "released": "its rows, reweighted"}
    stored = outcome.uri.removeprefix("file://")
    assert recompute(stored).records == 10_000
    opened = dpdist.open_release(stored)
    assert opened.tabulate(*opened.schema.names[:2])["count"].to_numpy().sum() == pytest.approx(12_000, rel=0.02)
    assert len(opened.sample(500)) == 500
    tree = spec_with(tmp_path, str(prior)) | {"name": "tables", "output": {"path": str(tmp_path / "tables")}}
    tree["model"]["prior"]["records"] = False
    assert run_release(load(tree)).parameters["learned"]["prior"] == {"records": 8_000}
    assert any(str(prior) in file.read_text() for file in Path(stored).rglob("*.json"))
    assert read_manifest(stored).spec["model"]["prior"]["public"] == PUBLIC  # type: ignore[index,call-overload]


@pytest.mark.parametrize("said", [None, "public"])
def test_a_prior_is_declared_public_in_a_sentence(tmp_path: Path, said: str | None) -> None:
    """It is read exactly and uncharged: one table without a contract answered any question about itself."""
    tree = spec_with(tmp_path, str(tmp_path / "other.parquet"))
    tree["model"]["prior"]["public"] = said
    if said is None:
        del tree["model"]["prior"]["public"]
    with pytest.raises(SpecError, match=r"model\.prior\.public"):
        load(tree)


def test_another_name_of_the_table_is_no_prior(tmp_path: Path) -> None:
    (tmp_path / "public").mkdir()
    spec = load(spec_with(tmp_path, str(tmp_path / "public" / "t.parquet")))
    (tmp_path / "public" / "t.parquet").hardlink_to(tmp_path / "table.parquet")
    with pytest.raises(SpecError, match=r"model\.prior: .* belongs to the table"):
        read_prior(spec)


def test_an_attempt_keeps_to_its_prior(tmp_path: Path) -> None:
    prior = tmp_path / "prior.parquet"
    pq.write_table(table(8_000), prior)
    spec = load(spec_with(tmp_path, str(prior)))
    ledger = Books.open(spec.ledger)
    ledger.create_dataset("people", epsilon="10", delta="1e-6")
    ledger.close()

    def stop(stage: str, done: int, total: int) -> None:
        if stage == "fitting":
            raise RuntimeError

    with pytest.raises(RuntimeError):
        run_release(spec, progress=stop)
    content = prior.read_bytes()
    pq.write_table(table(7_000), prior)
    for work in ("work", "another"):  # what is stored in the work folder is left behind in another one
        elsewhere = {"work": str(tmp_path / work), "output": {"path": str(tmp_path / f"release-{work}")}}
        with pytest.raises(ReleaseConflict, match="another public table"):
            run_release(load(spec_with(tmp_path, str(prior)) | elsewhere), attempt="resume")
    prior.write_bytes(content)
    assert run_release(spec, attempt="resume") is not None
    prior.unlink()  # once published, it is not needed
    assert run_release(spec, attempt="once").already


def test_a_prior_that_is_exchanged_during_a_run_is_noticed(tmp_path: Path) -> None:
    prior = tmp_path / "prior.parquet"
    pq.write_table(table(8_000), prior)
    spec = load(spec_with(tmp_path, str(prior)))
    ledger = Books.open(spec.ledger)
    ledger.create_dataset("people", epsilon="10", delta="1e-6")
    ledger.close()
    with Run(spec) as run:
        run.steps["charge"]()
        pq.write_table(table(7_000), prior)
        with pytest.raises(ReleaseConflict, match="public table was changed"):
            run.steps["model"]()
