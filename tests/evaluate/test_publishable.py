"""Figures that may be published: their sensitivity, their noise, their charge, and what a crash does."""

import hashlib
import json
import math
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from buckets import s3_server
from cases import SYNTHESIS
from releases import project, table

from dpdist import errors
from dpdist.cluster.opening import open_cluster
from dpdist.data.inputs import input_of
from dpdist.data.released import ReleasedTable
from dpdist.data.table import TableFiles
from dpdist.evaluation.inputs import Inputs, open_inputs
from dpdist.evaluation.page.files import Folder
from dpdist.evaluation.publishable import (
    FILE,
    STEPS,
    FiguresPlan,
    FiguresPublication,
    measure,
    refuse_another_reading,
    steps_of_distance,
)
from dpdist.evaluation.request import Request
from dpdist.evaluation.run import publishing, run_evaluation, tables_of
from dpdist.evaluation.utility.marginals import Marginals, chosen_triples, distances, marginals_operator
from dpdist.ledger import Books
from dpdist.lifecycle.run import run_release
from dpdist.privacy.arrays import Codes
from dpdist.privacy.noise import Noise
from dpdist.publish.verify import open_release
from dpdist.spec.release import ClusterSpec
from dpdist.spec.validation import change
from dpdist.storage.store import Store
from tests.evaluate.conftest import Made

SIZES = (2, 3, 2)
CHARGED = ("first/evaluation", "committed", pytest.approx(0.5, rel=1e-3))


def counted(records: list[tuple[int, ...]]) -> Marginals:
    codes: Codes = [np.array(column, np.uint8) for column in zip(*records, strict=True)]
    triples = chosen_triples(SIZES, seed=0)
    operator = marginals_operator(SIZES, triples)
    found: Marginals = operator.finish(operator.compact(operator.chunk(codes)))
    return found


def test_sums_of_distances_are_n_times_the_mean_distance() -> None:
    rng = np.random.default_rng(0)
    real, released = (
        counted([tuple(map(int, row)) for row in rng.integers(0, SIZES, (rows, 3))]) for rows in (997, 311)
    )
    for k in (1, 2, 3):
        exact = 997 * distances(released, real, k).mean() * STEPS
        assert 0 <= exact - steps_of_distance(released, real, k) < 1 + 1e-6


def test_one_record_changes_each_sum_by_one_at_most() -> None:
    """Every record added to small tables, against every kind of release; the bound is nearly attained."""
    cells = list(product(*map(range, SIZES)))
    rng = np.random.default_rng(1)
    largest = 0.0
    tables = [[cells[i] for i in rng.integers(0, len(cells), rows)] for rows in (1, 2, 5, 40)]
    tables.append([cells[0]] * 30)
    releases = [[cells[i] for i in rng.integers(0, len(cells), rows)] for rows in (1, 3, 500)]
    for real, released in product(tables, releases):
        before = counted(real)
        other = counted(released)
        for cell in cells:
            for records in (1, 3):  # three: a unit
                after = counted([*real, *[cell] * records])
                for k in (1, 2, 3):
                    change = abs(steps_of_distance(other, after, k) - steps_of_distance(other, before, k))
                    assert change <= records * STEPS + 1
                    largest = max(largest, change / records / STEPS)
    assert largest > 0.99


def test_exact_where_products_overflow() -> None:
    small = counted([(0, 0, 0), (1, 2, 1)])
    huge = Marginals(small.pairs, {which: cells * 1 for which, cells in small.triples.items()})
    for part in (huge.pairs.cells, *huge.triples.values()):
        part *= 3_000_000_000
    other = counted([(0, 1, 0), (1, 2, 1)])
    for part in (other.pairs.cells, *other.triples.values()):
        part *= 2_000_000_000
    expected = 6_000_000_000 * distances(other, huge, 2).mean() * STEPS
    assert steps_of_distance(other, huge, 2) == pytest.approx(expected, rel=1e-9)


def test_noise_has_the_scale_that_is_charged() -> None:
    """Four streams at a quarter of epsilon each: the truth is accepted, a scale 30 % off is not."""
    plan = FiguresPlan(1.0)
    real, released = counted([(0, 0, 0)] * 5_000), counted([(0, 0, 0)] * 50)
    found = [
        measure(released, real, plan, Noise(hashlib.sha256(bytes([i % 256, i // 256])).digest())) for i in range(600)
    ]
    numbers = np.array([one["records"] for one in found]) - 5_000
    sums = np.array([(1000 - one["k_marginal_score"]["2"]) / 1000 * one["records"] for one in found])
    scale = 1 / 0.25
    for drawn, deviation in ((np.abs(numbers), scale), (np.abs(sums)[sums > 0], scale)):
        z = (drawn.mean() - deviation) / (deviation / math.sqrt(len(drawn)))
        assert abs(z) < 6
        assert abs((drawn.mean() - 0.7 * deviation) / (0.7 * deviation / math.sqrt(len(drawn)))) > 6
    assert plan.guarantee.epsilon == pytest.approx(1.0, rel=1e-5)
    assert plan.guarantee.delta < 1e-16
    assert "the published figures" in plan.guarantee.sentence()


@pytest.mark.parametrize("epsilon", [0.0, -1.0, 21.0, float("nan")])
def test_an_epsilon_that_says_nothing_is_refused(epsilon: float) -> None:
    with pytest.raises(errors.SpecError, match="--publish"):
        FiguresPlan(epsilon)


# --- the charge -------------------------------------------------------------------------------------------------------


@pytest.fixture
def own(made: Made, tmp_path: Path) -> Made:
    """The release with a ledger of its own, which a test may charge."""
    for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
        if (made.folder / name).exists():
            shutil.copy2(made.folder / name, tmp_path / name)
    for path in made.folder.iterdir():
        if path.is_file() and "kek" in path.name.lower():
            shutil.copy2(path, tmp_path / path.name)
    return Made(tmp_path, made.spec)


def request(own: Made) -> Request:
    return Request(
        release=own.release,
        against=(own.table,),
        output=own.folder / "page",
        train=50,
        test=50,
        attacks=False,
        cluster="threads",
        publish=0.5,
        ledger=f"sqlite:///{own.folder}/ledger.db",
    )


def publish(own: Made, asked: Request | None = None) -> None:
    """What an evaluation does before it trains models."""
    asked = asked or request(own)
    store, manifest = open_release(own.release)
    with open_cluster(ClusterSpec(mode="threads")) as cluster, publishing(asked, manifest) as publication:
        released, quiet = ReleasedTable(store, manifest), lambda *_: None
        options = {"executor": cluster, "seed": 0, "progress": quiet, "charge": publication.reserve}
        publication.publish(open_inputs(released, tables_of(asked), **options).marginals())


def charges(own: Made) -> list[tuple[str, str, float]]:
    ledger = Books.open(f"sqlite:///{own.folder}/ledger.db", create=False)
    try:
        return [(a.release, a.state, float(a.epsilon)) for a in ledger.show("people").attempts]
    finally:
        ledger.close()


def test_no_line_is_read_before_the_charge(own: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """CSV files are counted line by line, and a line that cannot be cut is a refusal."""
    shutil.copy2(own.table, own.folder / "other.parquet")
    asked = replace(request(own), against=(str(own.folder / "other.parquet"),))
    monkeypatch.setattr(TableFiles, "on", lambda *_, **__: pytest.fail("read before the charge"))
    before = charges(own)
    with pytest.raises(errors.ReleaseConflict, match="--against is not the table that the release was made from"):
        run_evaluation(asked)
    assert charges(own) == before


@pytest.mark.usefixtures("undrawn")
def test_figures_are_charged_once_and_stay_the_same(own: Made) -> None:
    run_evaluation(request(own))
    first = (own.folder / "page" / FILE).read_bytes()
    publish(own)
    assert (own.folder / "page" / FILE).read_bytes() == first
    assert [c for c in charges(own) if c[0] == "first/evaluation"] == [CHARGED]
    body = json.loads(first)
    assert "the published figures (add/remove)" in body["guarantee"]
    assert abs(body["figures"]["records"] - 30_000) < 400
    page = (own.folder / "page" / "evaluation.html").read_text()
    assert "may be published" in page
    with pytest.raises(errors.ReleaseConflict, match="once for each release"):
        publish(own, replace(request(own), publish=0.25))


def test_a_table_of_which_the_policies_leave_nothing_has_figures(tmp_path: Path) -> None:
    """That it has none told whether a described person is there; the page, which nobody publishes, needs records."""
    SYNTHESIS.project(tmp_path)
    empty = table(50)
    empty = empty.set_column(0, "region", pa.nulls(50, pa.string()))
    SYNTHESIS.write(tmp_path, empty)
    attributes = [{**attribute, "missing": "drop"} for attribute in SYNTHESIS.settings["schema"]["attributes"]]
    spec = SYNTHESIS.spec(tmp_path, schema={"attributes": attributes})
    run_release(spec)
    asked = replace(request(Made(tmp_path, spec)), release=spec.output.path, against=spec.data.paths)
    with pytest.raises(errors.EmptyTable):
        run_evaluation(asked)
    assert json.loads((tmp_path / "page" / FILE).read_text())["release"] == "first"
    assert charges(Made(tmp_path, spec))[-1][:2] == CHARGED[:2]


def test_a_run_that_dies_after_the_noise_goes_on_with_the_same_noise(
    own: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Died(Exception):
        pass

    def die(*_: object, **__: object) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(Books, "commit", die)
        with pytest.raises(Died):
            publish(own)
    kept = list((own.folder / "page").glob(f".{FILE}.*"))
    content = kept[0].read_bytes()
    assert not (own.folder / "page" / FILE).exists()
    assert charges(own)[-1] == ("first/evaluation", "drawing", CHARGED[2])
    kept[0].unlink()  # even without what was stored, the noise is the same
    publish(own)
    assert (own.folder / "page" / FILE).read_bytes() == content
    assert charges(own)[-1] == CHARGED


@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_a_run_that_dies_between_commit_and_publication_is_finished(
    place: str, own: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = Books.commit

    def die(self: Books, *args: object, **named: object) -> None:
        commit(self, *args, **named)
        raise KeyboardInterrupt

    def interrupted(asked: Request) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Books, "commit", die)
            with pytest.raises(KeyboardInterrupt):
                publish(own, asked)

    if place == "folder":
        interrupted(request(own))
        assert not (own.folder / "page" / FILE).exists()
        publish(own)
        assert (own.folder / "page" / FILE).exists()
        assert not list((own.folder / "page").glob(f".{FILE}.*"))
        return
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{name}", "test")
    with s3_server() as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        store = Store("s3://secret/page")
        store._fs.mkdir("secret")
        asked = replace(request(own), output=store.uri, confidential=True)
        interrupted(asked)
        (name,) = store.names()
        assert name.startswith(f"unfinished.{FILE}.")
        content = store.read_bytes(name)
        publish(own, asked)
        assert store.names() == (FILE,)
        assert store.read_bytes(FILE) == content


def test_a_table_that_is_refused_stays_charged(own: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise errors.OutOfDomain("column 'age'")

    with monkeypatch.context() as patch:
        patch.setattr(Inputs, "marginals", refuse)
        with pytest.raises(errors.OutOfDomain):
            publish(own)
    assert charges(own)[-1] == ("first/evaluation", "drawing", CHARGED[2])
    publish(own)  # mended: charged once
    assert [state for release, state, _ in charges(own) if release == "first/evaluation"] == ["committed"]


def test_a_table_that_changes_while_it_is_read_costs_nothing(own: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a release: nothing is drawn for a table that is not the one that was charged."""
    path = own.folder / "changing.parquet"
    shutil.copy2(own.table, path)
    store, manifest = open_release(own.release)
    with open_cluster(ClusterSpec(mode="threads")) as cluster:
        inputs = open_inputs(
            ReleasedTable(store, manifest),
            tables_of(replace(request(own), against=(str(path),))),
            executor=cluster,
            seed=0,
            progress=lambda *_: None,
        )
        pq.write_table(table(30_000, seed=7), path, row_group_size=7_000)
        with pytest.raises(errors.DataError, match="changed while it was read"):
            inputs.marginals()


def test_another_table_is_not_charged(own: Made) -> None:
    pq.write_table(table(30_000), own.folder / "copy.parquet")
    with pytest.raises(errors.ReleaseConflict, match="not the table that the release was made from"):
        publish(own, replace(request(own), against=(str(own.folder / "copy.parquet"),)))
    assert all(release != "first/evaluation" for release, _, _ in charges(own))


def test_a_ledger_that_does_not_know_the_release_is_refused(own: Made) -> None:
    other = Books.open(f"sqlite:///{own.folder}/other.db")
    other.create_dataset("people", epsilon=4, delta="1e-5")
    other.close()
    with pytest.raises(errors.ReleaseConflict, match="does not know this release"):
        publish(own, replace(request(own), ledger=f"sqlite:///{own.folder}/other.db"))


def test_the_ledger_is_that_of_the_spec_where_none_is_named(own: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DPDIST_LEDGER", raising=False)
    (own.folder / "none").mkdir()
    monkeypatch.chdir(own.folder / "none")  # where no ledger lies
    spec = own.spec.model_copy(update={"ledger": f"sqlite:///{own.folder}/ledger.db"})
    publish(own, replace(request(own), ledger=None, spec=spec))
    assert any(release == "first/evaluation" for release, _, _ in charges(own))


def test_figures_are_of_the_manifest_that_was_committed(own: Made) -> None:
    """With another schema in a copy of the manifest, figures were charged and said to be of the release."""
    _, manifest = open_release(own.release)
    attributes = tuple(manifest.table.attributes)
    age = attributes[0].model_copy(update={"out_of_domain": "drop"})
    forged = manifest.model_copy(
        update={"table": manifest.table.model_copy(update={"attributes": (age, *attributes[1:])})}
    )
    ledger = Books.open(f"sqlite:///{own.folder}/ledger.db", create=False)
    release = ledger.find("people", manifest.name)
    with pytest.raises(errors.ReleaseConflict, match="manifest"):
        FiguresPublication(ledger, forged, FiguresPlan(0.5), Folder(own.folder), 0).reserve(release.input_fingerprint)
    ledger.close()
    assert all(name != "first/evaluation" for name, _, _ in charges(own))


def test_publication_needs_its_charge(own: Made) -> None:
    ledger = Books.open(f"sqlite:///{own.folder}/ledger.db", create=False)
    publication = FiguresPublication(ledger, open_release(own.release)[1], FiguresPlan(1.0), Folder(own.folder), 0)
    with pytest.raises(errors.LedgerError, match="reserve comes first"):
        publication.publish({})
    ledger.close()


def test_csv_files_are_read_as_the_release_read_them(made: Made, tmp_path: Path) -> None:
    """With other options a comment or a line passed over decided which records there are, or that none exist."""
    (tmp_path / "t.csv").write_text("a\n1\n")
    spec = project(tmp_path, rows=10, data__path=f"{tmp_path}/t.csv")
    _, manifest = open_release(made.release)
    manifest = manifest.model_copy(update={"spec_sha256": spec.fingerprint})
    files = input_of(spec)
    refuse_another_reading(manifest, spec, files)
    for other in (None, change(spec, {"data.csv.comment": "1"}), change(spec, {"data.csv.skip_rows": 1})):
        with pytest.raises(errors.SpecError, match="give it as --spec"):
            refuse_another_reading(manifest, other, files if other is None else input_of(other))
    refuse_another_reading(manifest, None, input_of(project(tmp_path)))
