"""Releases that name earlier ones as evidence."""

from __future__ import annotations

import contextlib
import shutil
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from releases import SCHEMA, table

from dpdist.errors import ReleaseConflict, SpecError, VerificationFailed
from dpdist.families.base.registry import make_plan
from dpdist.families.synthesis.prior import evidence_paths
from dpdist.inference.records import recompute
from dpdist.ledger import Books
from dpdist.lifecycle.run import Run, run_release
from dpdist.publish.verify import read_manifest, verify
from dpdist.spec.contract import Contract
from dpdist.spec.reader import load


def month(folder: Path, name: str, *, rows: int, **evidence: list[str]) -> dict[str, Any]:
    """The spec of a month, whose table is written."""
    data = folder / f"{name}.parquet"
    pq.write_table(table(rows), data)
    return {
        "kind": "synthesis",
        "name": name,
        "dataset": "people",
        "schema": SCHEMA,
        "data": {"path": str(data), "minimum_records": 2_000},
        "output": {"path": str(folder / "releases" / name)},
        "ledger": f"sqlite:///{folder}/ledger.db",
        "work": str(folder / "work"),
        "cluster": {"mode": "in-process"},
        "privacy": {"epsilon": 1, "delta": 1e-7},
        "model": {
            "evidence": {kind: [str(folder / "releases" / n) for n in found] for kind, found in evidence.items()}
        },
    }


@pytest.fixture(scope="module")
def year(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two months, the second with the first as evidence, and both of them as a sum."""
    folder = tmp_path_factory.mktemp("series")
    (folder / "releases").mkdir()
    books = Books.open(f"sqlite:///{folder}/ledger.db")
    books.create_dataset("people", epsilon="10", delta="1e-5")
    books.close()
    for name, rows, evidence in (
        ("january", 2_500, {}),
        ("february", 3_000, {"previous": ["january"]}),
        ("both", 5_500, {"sum": ["january", "february"]}),
    ):
        assert run_release(load(month(folder, name, rows=rows, **evidence))) is not None  # type: ignore[arg-type]
    return folder


def test_the_manifest_names_evidence_and_verification_covers_it(year: Path, tmp_path: Path) -> None:
    for name, earlier in (("february", {"previous": ["january"]}), ("both", {"sum": ["january", "february"]})):
        folder = str(year / "releases" / name)
        learned: Any = read_manifest(folder).parameters["learned"]
        (kind, names), *others = learned["evidence"].items()
        assert not others
        assert {kind: [one["release"] for one in names]} == earlier
        hashes = [verify(year / "releases" / one["release"]).manifest_sha256 for one in names]
        assert [one["manifest_sha256"] for one in names] == hashes
        found = recompute(folder)
        assert (found.evidence, found.missing) == (len(names), ())
    assert "evidence" not in str(read_manifest(str(year / "releases" / "january")).parameters)
    moved = tmp_path / "series"
    shutil.copytree(year / "releases", moved / "releases")
    february = str(year / "releases" / "february")
    hidden = (year / "releases" / "january").rename(year / "hidden")
    try:
        assert recompute(february).missing == (str(year / "releases" / "january"),)
        shutil.copytree(moved / "releases" / "both", year / "releases" / "january")
        with pytest.raises(VerificationFailed, match="not those that the manifest names"):
            recompute(february)
        shutil.rmtree(year / "releases" / "january")
    finally:
        hidden.rename(year / "releases" / "january")


def test_a_pattern_names_the_releases_before(year: Path) -> None:
    """On a schedule: the first release has no evidence, later ones those whose names come before."""
    later = load(month(year, "k-fourth", rows=10, previous=["*ary"]))
    assert evidence_paths(later)["previous"] == tuple(f"{year}/releases/{name}" for name in ("february", "january"))
    first = load(month(year, "a-first", rows=10, previous=["*ary"]))
    assert make_plan(first).event == make_plan(load(month(year, "plain", rows=10))).event


def test_what_is_charged_does_not_depend_on_evidence(year: Path) -> None:
    plans = [
        make_plan(load(month(year, "plan", rows=10, **evidence)))  # type: ignore[arg-type]
        for evidence in ({}, {"previous": ["january"]})
    ]
    assert plans[0].mu == pytest.approx(plans[1].mu, rel=1e-6)  # bounds of the draws differ
    assert plans[1].epsilon <= 1
    assert ["Evidence" in plan.explain() for plan in plans] == [False, True]


def test_evidence_is_admitted_by_the_contract_and_binds_the_attempt(year: Path) -> None:
    spec = load(month(year, "march", rows=2_600, previous=["january"]))
    rules = {
        "schema": spec.table,
        "data": {"path": spec.data.path},
        "minimum_records": 2_000,
        "epsilon": "10",
        "delta": "1e-6",
    }
    contract = Contract.model_validate(rules)
    assert any("model.evidence" in departure for departure in contract.departures(spec, event=None))
    admitted = contract.model_copy(update={"public_tables": (str(year / "releases" / "*"),)})
    assert not admitted.departures(spec, event=None)
    with Run(spec) as run:
        run.steps["charge"]()
        january = (year / "releases" / "january").rename(year / "january")
        shutil.copytree(year / "releases" / "february", year / "releases" / "january")
        try:
            with pytest.raises(ReleaseConflict, match="earlier releases were changed"):
                run.steps["model"]()
        finally:
            shutil.rmtree(year / "releases" / "january")
            january.rename(year / "releases" / "january")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"previous": ["january", "january"]}, "named twice"),
        ({"previous": ["january"], "part": ["january"]}, "named twice"),
    ],
)
def test_evidence_counts_once(year: Path, change: dict[str, list[str]], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        run_release(load(month(year, "april", rows=2_600, **change)))


def test_evidence_has_the_same_attributes(year: Path) -> None:
    tree = month(year, "may", rows=2_600, previous=["january"])
    tree["schema"] = {"attributes": SCHEMA["attributes"][:-1]}
    tree["data"]["extra_columns"] = "ignore"
    with pytest.raises(SpecError, match="has another schema"):
        run_release(load(tree))


def test_months_on_a_schedule_take_those_before_them(tmp_path: Path) -> None:
    """One spec for every month: a month that is left out, comes late or is run again."""
    tree = month(tmp_path, "births", rows=2_500, previous=["????-??"])
    tree["name"], tree["output"]["path"] = "births-{date:%Y-%m}", f"{tmp_path}/releases/{{date:%Y-%m}}"
    tree |= {"privacy": {"epsilon": 0.1, "delta": 1e-7}, "model": tree["model"] | {"rounds": 1, "balance": 0}}
    (tmp_path / "releases").mkdir()
    with contextlib.closing(Books.open(tree["ledger"])) as books:
        books.create_dataset("people", epsilon="1", delta="1e-5")
        spent, before = [], {1: [], 3: ["01"], 2: ["01"], 4: ["01", "02", "03"]}
        for number, earlier in before.items():
            spec = load(tree, day=date(2026, number, 1))
            made = run_release(spec, attempt="once")
            named = made.parameters["learned"].get("evidence", {"previous": []})["previous"]
            assert [one["release"] for one in named] == [f"births-2026-{name}" for name in earlier]
            assert run_release(spec, attempt="once").already
            spent.append(books.remaining("people").epsilon_spent)
    assert recompute(f"{tmp_path}/releases/2026-04").evidence == 3
    assert all(later > earlier for earlier, later in pairwise(spent))
