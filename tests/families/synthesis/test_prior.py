"""A public table as a prior."""

import contextlib
import hashlib
import shutil
from dataclasses import replace
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from commands import Command
from releases import SCHEMA, table
from syntheses import learn

import dpdist
from dpdist.data.count import pair_counts
from dpdist.errors import ReleaseConflict, SpecError, VerificationFailed
from dpdist.families.base.registry import make_plan
from dpdist.families.synthesis.prior import evidence_paths, read_prior
from dpdist.inference.records import recompute
from dpdist.ledger import Books
from dpdist.lifecycle.run import Run, run_release
from dpdist.model.choices import PUBLIC_MISFIT, choose, with_prior
from dpdist.model.earlier import repeat_evidence
from dpdist.model.public_rows import PublicPool
from dpdist.privacy.noise import Noise
from dpdist.publish.manifest import MANIFEST
from dpdist.publish.verify import read_manifest, verify
from dpdist.spec.contract import Contract
from dpdist.spec.reader import load
from dpdist.storage.store import Store

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
    choices = with_prior(choose(CARDS, records=3000, mu=mu, raking=False), 4)
    choices = replace(choices, one_way=0.9, one_way_again=0.0, pairs=0.0, rounds=0, picks=0.0, balance=1)
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
    choices = with_prior(choose(CARDS, records=20_000, mu=0.5, raking=False), 4)
    prior = pair_counts(other, CARDS)
    choices = replace(choices, balance=1)
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


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 4])
def test_a_misfit_has_a_share_where_rows_may_be_released(tmp_path: Path, epsilon: float) -> None:
    for rows, spent in ((True, 1 - PUBLIC_MISFIT), (False, 1.0)):
        spec = spec_with(tmp_path, "other")
        spec["privacy"]["epsilon"], spec["model"]["prior"]["records"] = epsilon, rows
        assert make_plan(load(spec)).choices.spends == pytest.approx(spent, abs=1e-12)


def test_small_sets_take_their_part_of_what_a_misfit_leaves_to_pairs(tmp_path: Path) -> None:
    """Else they could take more than a round of few has, where the public table is far."""
    given = {"data.minimum_records": 2_000, "privacy.epsilon": 0.5}
    made = make_plan(load(spec_with(tmp_path, "other"), given))
    own, apart = made.choices, made.apart  # type: ignore[attr-defined]
    assert not own.rake
    assert own.high
    assert own.spends == pytest.approx(apart.spends, abs=1e-12)
    assert apart.high / apart.pairs == pytest.approx(own.high / own.pairs)


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 4])
def test_no_more_error_is_expected_with_a_prior(tmp_path: Path, epsilon: float) -> None:
    spec = spec_with(tmp_path, "other")
    spec["privacy"]["epsilon"] = epsilon
    made, alone = (make_plan(load(spec, given)) for given in ({}, {"model.prior": None}))
    assert made.expected.error == pytest.approx(alone.expected.error, rel=1e-6)  # type: ignore[attr-defined]


def test_the_table_itself_is_no_prior(tmp_path: Path) -> None:
    spec_with(tmp_path, "other")
    (tmp_path / "link.parquet").symlink_to(tmp_path / "table.parquet")
    for path in ("table.parquet", "link.parquet", "../" + tmp_path.name + "/table.parquet", "*.parquet", ""):
        with pytest.raises(SpecError, match=r"model\.prior: .* belongs to the table"):
            make_plan(load(spec_with(tmp_path, str(tmp_path / path))))


def test_the_plan_says_what_the_model_starts_from(tmp_path: Path) -> None:
    """Where records are raked, the table's own pairs give the model."""
    spec = spec_with(tmp_path, "prior.parquet")
    for records, start in ((200, "pairs"), (5_000_000, "one-way tables")):
        made = make_plan(load(spec, {"data.minimum_records": records, "synthesis.records": records}))
        assert bool(made.choices.rake) is (start == "one-way tables")  # type: ignore[attr-defined]
        assert f"starts from {start} of" in " ".join(made.explain().split())


def test_a_release_with_a_prior_names_it_and_keeps_its_contract(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = PublicPool.distance
    monkeypatch.setattr(PublicPool, "distance", lambda *given: min(asked(*given), 0.5))  # whatever the key is
    (tmp_path / "public").mkdir()
    prior = tmp_path / "public" / "last-year.parquet"
    pq.write_table(table(8_000), prior)
    spec = load(spec_with(tmp_path, str(prior)), {"privacy.epsilon": 0.2})
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


# --- Releases that name earlier ones as evidence


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


def weighed(folder: str) -> tuple[int, tuple[str, ...]]:
    """What its evidence gives again, for a release of one's own."""
    return repeat_evidence(folder, verify(folder).manifest_sha256, {})


def test_places_that_a_stranger_names_are_not_opened(
    year: Path, tmp_path: Path, dpdist: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manifest may name a folder of the reader, or an address that takes the reader's credentials."""
    folder, opened = shutil.copytree(year / "releases" / "february", tmp_path / "february"), []
    content = (folder / MANIFEST).read_text()
    (folder / MANIFEST).write_text(content.replace(str(year / "releases" / "january"), "s3://somebody/else"))

    class Watched(Store):
        def __init__(self, uri: Any, *given: Any) -> None:
            opened.append(str(uri))
            super().__init__(folder, *given)

    read = ("verify", str(year / "releases" / "february"), "--recompute", "--ledger", f"{year}/ledger.db")
    assert "what 1 earlier release say of it" in dpdist(*read).words
    for module in ("dpdist.model.earlier.Store", "dpdist.publish.verify.Store"):
        monkeypatch.setattr(module, Watched)
    read = ("verify", str(folder), "--recompute")
    assert "not the evidence: its places are opened only with --public-key or --ledger" in dpdist(*read).words
    assert dpdist(*read, "--json").json["recomputed"]["evidence"] is None
    assert dpdist(*read, "--ledger", f"{year}/ledger.db").code == 6  # it committed another manifest
    with pytest.raises(VerificationFailed, match="changed after it was verified"):
        repeat_evidence(str(folder), hashlib.sha256(content.encode()).hexdigest(), {})
    assert set(opened) == {str(folder)}


def test_the_manifest_names_evidence_and_verification_covers_it(year: Path, tmp_path: Path) -> None:
    for name, earlier in (("february", {"previous": ["january"]}), ("both", {"sum": ["january", "february"]})):
        folder = str(year / "releases" / name)
        learned: Any = read_manifest(folder).parameters["learned"]
        (kind, names), *others = learned["evidence"].items()
        assert not others
        assert {kind: [one["release"] for one in names]} == earlier
        hashes = [verify(year / "releases" / one["release"]).manifest_sha256 for one in names]
        assert [one["manifest_sha256"] for one in names] == hashes
        assert weighed(folder) == (len(names), ())
    assert "evidence" not in str(read_manifest(str(year / "releases" / "january")).parameters)
    moved = tmp_path / "series"
    shutil.copytree(year / "releases", moved / "releases")
    february = str(year / "releases" / "february")
    hidden = (year / "releases" / "january").rename(year / "hidden")
    try:
        assert weighed(february) == (0, (str(year / "releases" / "january"),))
        shutil.copytree(moved / "releases" / "both", year / "releases" / "january")
        with pytest.raises(VerificationFailed, match="not those that the manifest names"):
            weighed(february)
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


def test_without_evidence_that_is_too_far_the_budget_is_spent_too(year: Path) -> None:
    """The one-way tables are measured by then, and small sets are not counted."""
    spec = load(month(year, "plan", rows=10, previous=["january"]), {"data.minimum_records": 500_000})
    plan: Any = make_plan(spec)
    own, apart = plan.choices, plan.apart
    assert own.rake
    assert (apart.one_way, apart.one_way_again, apart.high) == (own.one_way, own.one_way_again, 0)
    assert apart.spends == pytest.approx(own.spends, abs=1e-9)
    assert not apart.prior_cells


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
    assert weighed(f"{tmp_path}/releases/2026-04") == (3, ())
    assert all(later > earlier for earlier, later in pairwise(spent))
