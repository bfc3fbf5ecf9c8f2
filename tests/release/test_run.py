"""Releases end to end in one process: published, charged, verified, resumable, refused where they must be."""

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from outcomes import states
from reading import readable
from releases import KEY, SCHEMA, Crash, crashing, project, table

import dpdist.lifecycle.publication
import dpdist.lifecycle.run
from dpdist import errors
from dpdist.cluster.opening import open_cluster
from dpdist.families.base.registry import make_plan
from dpdist.families.deniability.spec import PlausibleDeniabilitySpec
from dpdist.ledger.statement import account_facts
from dpdist.lifecycle.run import run_release
from dpdist.privacy.calibrate import least_scale
from dpdist.publish.verify import read_manifest, read_release, verify
from dpdist.spec.release import ClusterSpec


def test_a_release_is_published_charged_and_verified(tmp_path: Path) -> None:
    spec = project(tmp_path)
    outcome = run_release(spec)
    report = verify(spec.output.path)
    assert report.records == outcome.records == 2_500
    assert report.parts == 3
    assert states(spec) == ["committed"]
    assert outcome.guarantee.startswith("Per record")
    released = read_release(spec.output.path)
    assert released.column_names == ["region", "age", "sex", "score", "employed"]
    assert set(released["region"].to_pylist()) <= {"north", "south", "east", "west"}
    assert min(released["age"].to_pylist()) >= 0
    assert max(released["age"].to_pylist()) <= 99


def test_what_the_ledger_refuses_starts_no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = project(tmp_path)
    run_release(spec)

    def started(*_: object) -> None:
        raise AssertionError("a cluster was started")

    monkeypatch.setattr("dpdist.lifecycle.run.opened_executor", started)
    with pytest.raises(errors.ReleaseConflict):
        run_release(project(tmp_path, output__path=str(tmp_path / "again")))
    with pytest.raises(errors.DatasetUnknown):
        run_release(project(tmp_path, name="other", dataset="nobody", output__path=str(tmp_path / "other")))
    assert states(spec) == ["committed"]


def test_released_records_look_like_the_table(tmp_path: Path) -> None:
    spec = project(tmp_path, synthesis__records=20_000)
    run_release(spec)
    released = read_release(spec.output.path)
    original = table(30_000)
    for name in ("region", "score", "employed", "sex"):
        values = sorted(set(original[name].to_pylist()))
        a, b = (np.array([t[name].to_pylist().count(v) for v in values]) / t.num_rows for t in (original, released))
        assert np.abs(a - b).sum() / 2 < 0.05, name


def test_the_key_is_destroyed_and_private_counts_stay_in_the_run_record(tmp_path: Path) -> None:
    spec = project(tmp_path)
    outcome = run_release(spec)
    work = tmp_path / "work" / outcome.attempt
    assert not (work / "key.json").exists()
    record = json.loads((work / "run-record.json").read_text())
    assert record["confidential"].startswith("confidential")
    assert record["table"]["rows_read"] == 30_000
    manifest = readable((tmp_path / "release" / "_manifest.json").read_text())
    assert (tmp_path / "work").stat().st_mode & 0o777 == 0o700
    for private in ("30000", "30,000", str(record["seeds"]), str(record["candidates"]["passed"]), "tried"):
        assert not re.search(rf"(?<!\w){private}(?!\w)", manifest)


def test_every_attribute_resampled_uses_no_seeds(tmp_path: Path) -> None:
    spec = project(tmp_path, synthesis__omega="all", privacy__accept_per_record=False)
    outcome = run_release(spec)
    assert "the whole release" in outcome.guarantee
    assert "Per record" not in outcome.guarantee
    manifest = read_manifest(spec.output.path)
    assert manifest.guarantees[0]["epsilon"] <= 2


def test_a_fixed_key_is_declared_first(tmp_path: Path) -> None:
    run_release(project(tmp_path), fixed_key=KEY)
    lines = (tmp_path / "release" / "_manifest.json").read_text().splitlines()
    assert lines[1].strip().startswith('"not_private": "not private')


def test_a_crash_between_commit_and_manifest_is_finished_by_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = project(tmp_path)

    def crash(*_: Any, **__: Any) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr("dpdist.lifecycle.publication.publish", crash)
        with pytest.raises(Crash):
            run_release(spec)
    assert states(spec) == ["committed"]
    run_release(spec, attempt="resume")
    verify(spec.output.path)
    assert run_release(spec, attempt="resume").records == 2_500  # harmless when there is nothing to do
    assert states(spec) == ["committed"]


def test_a_resume_on_changed_input_or_spec_is_refused(tmp_path: Path) -> None:
    spec = project(tmp_path)
    with pytest.raises(Crash):
        run_release(spec, progress=crashing())
    with pytest.raises(errors.ReleaseConflict):
        run_release(project(tmp_path, synthesis__records=100), attempt="resume")
    pq.write_table(table(30_000, seed=1), tmp_path / "table.parquet")
    with pytest.raises(errors.ReleaseConflict):
        run_release(spec, attempt="resume")
    run_release(spec, attempt="replace")
    assert states(spec) == ["abandoned", "committed"]


def test_an_input_that_changes_while_it_is_read_is_not_published(tmp_path: Path) -> None:
    def progress(name: str, done: int, total: int) -> None:
        if name == "writing" and done == 0:
            pq.write_table(table(30_000, seed=1), tmp_path / "table.parquet")

    spec = project(tmp_path)
    with pytest.raises(errors.ReleaseConflict, match="changed while it was read"):
        run_release(spec, progress=progress)
    assert not (tmp_path / "release" / "_manifest.json").exists()
    assert states(spec) == ["drawing"]


@pytest.mark.parametrize(("factor", "resumed"), [(1 + 1e-9, True), (1 - 1e-9, False), (0.9, False)])
def test_a_resume_under_a_plan_that_costs_more_is_refused(
    factor: float, resumed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = project(tmp_path)
    with pytest.raises(Crash):
        run_release(spec, progress=crashing())
    monkeypatch.setattr(
        "dpdist.families.deniability.plan.least_scale", lambda cost, **options: factor * least_scale(cost, **options)
    )
    with nullcontext() if resumed else pytest.raises(errors.ReleaseConflict, match="a plan that costs less"):
        run_release(spec, attempt="resume")
    assert states(spec) == ["committed" if resumed else "drawing"]


def test_a_second_run_of_a_committed_release_is_refused(tmp_path: Path) -> None:
    spec = project(tmp_path)
    run_release(spec)
    with pytest.raises(errors.OutputExists):
        run_release(spec)
    with pytest.raises(errors.ReleaseConflict):
        run_release(project(tmp_path, output__path=str(tmp_path / "other")))
    assert states(spec) == ["committed"]


def bad_table(path: Path, kind: str) -> None:
    """Replace the table by a bad one."""
    good = table(30_000)
    match kind:
        case "empty file":
            path.write_bytes(b"")
        case "unknown column":
            pq.write_table(good.append_column("extra", pa.array([0] * good.num_rows)), path)
        case "missing column":
            pq.write_table(good.drop_columns(["score"]), path)
        case "out of domain":
            pq.write_table(good.set_column(3, "score", pa.array([77] + [1] * (good.num_rows - 1))), path)
        case "missing value":
            pq.write_table(good.set_column(3, "score", pa.array([None] + [1] * (good.num_rows - 1))), path)
        case "text in an integer column":
            pq.write_table(good.set_column(1, "age", pa.array(["secret"] * good.num_rows)), path)
        case "integers beside texts":
            pq.write_table(good.set_column(0, "region", pa.array([77] * good.num_rows)), path)
        case "truncated":
            pq.write_table(good, path)
            path.write_bytes(path.read_bytes()[:-200])
        case "damaged inside":
            pq.write_table(good, path)
            content = bytearray(path.read_bytes())
            content[100:2000] = bytes(1900)
            path.write_bytes(content)


@pytest.mark.parametrize(
    ("kind", "error", "text"),
    [
        ("empty file", errors.DataError, "table.parquet"),
        ("unknown column", errors.ColumnMismatch, "extra"),
        ("missing column", errors.ColumnMismatch, "score"),
        ("out of domain", errors.OutOfDomain, "score"),
        ("missing value", errors.OutOfDomain, "score"),
        ("text in an integer column", errors.ColumnMismatch, "age"),
        ("integers beside texts", errors.ColumnMismatch, "'region' holds integers, and no declared value is one"),
        ("truncated", errors.UnreadableFile, "table.parquet"),
        ("damaged inside", errors.UnreadableFile, "table.parquet"),
    ],
)
def test_bad_tables_are_refused(tmp_path: Path, kind: str, error: type[Exception], text: str) -> None:
    """What the files are shows before a record is read; what the records are costs the charge."""
    spec = project(tmp_path)
    bad_table(tmp_path / "table.parquet", kind)
    with pytest.raises(error, match=text) as caught:
        run_release(spec)
    assert "secret" not in str(caught.value)
    assert "77" not in readable(str(caught.value))
    assert not (tmp_path / "release" / "_manifest.json").exists()
    read = kind in ("out of domain", "missing value", "text in an integer column", "damaged inside")
    assert states(spec) == ["drawing"] * read
    assert ("The charge stays spent" in str(caught.value)) == read


@pytest.mark.parametrize(
    ("content", "error", "charged"),
    [("x,1".encode("utf-16"), errors.WrongFormat, False), (b"x", errors.DataError, True)],
)
def test_another_format_is_refused_before_the_charge_and_a_record_after_it(
    content: bytes, error: type[errors.DataError], charged: bool, tmp_path: Path
) -> None:
    """In files without a header, where the first bytes are a record's."""
    (tmp_path / "t.csv").write_bytes(content)
    names = [attribute["name"] for attribute in SCHEMA["attributes"]]
    spec = project(tmp_path, data__path=str(tmp_path / "t.csv"), data__csv={"header": False, "columns": names})
    with pytest.raises(error) as caught:
        run_release(spec)
    assert isinstance(caught.value, errors.WrongFormat) != charged
    assert states(spec) == ["drawing"] * charged


def refused(spec: PlausibleDeniabilitySpec, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        run_release(spec)
    assert states(spec) in ([], ["void"])


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"privacy__deniability__k": 9_000}, errors.SpecError, "privacy.deniability.k"),
        (
            {"privacy__accept_per_record": False, "privacy__deniability__test": "deterministic"},
            errors.GuaranteeRefused,
            "accept_per_record",
        ),
        ({"privacy__limit": 0.5}, errors.GuaranteeRefused, "privacy.limit"),
        (
            {
                "privacy__accept_per_record": False,
                "privacy__seed_check_epsilon": 10,
                "synthesis__omega": [3],
                "synthesis__minimum_pass_rate": 0.5,
                "synthesis__records": 60_000,
            },
            errors.GuaranteeRefused,
            "above 27",
        ),
        (
            {"cluster": {"mode": "address", "address": "tcp://127.0.0.1:9", "timeout": 1}},
            errors.ClusterUnreachable,
            "127.0.0.1:9",
        ),
        (
            {
                "schema": {"attributes": [{"name": n, "kind": "integer", "bounds": [0, 65_535]} for n in "ab"]},
                "synthesis__omega": "all",
                "privacy__accept_per_record": False,
            },
            errors.SpecError,
            "pair",
        ),
    ],
    ids=["k above the seeds", "per record", "limit", "says nothing", "no scheduler", "pairs do not fit"],
)
def test_what_is_refused_costs_nothing(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], text: str
) -> None:
    refused(project(tmp_path, **changes), error, text)


def test_unwritable_output(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(project(tmp_path, output__path=str(tmp_path / "file" / "x")), errors.OutputUnwritable, "file")


def test_what_is_the_matter_with_a_ledger_is_told_with_the_plan(tmp_path: Path) -> None:
    plan = make_plan(project(tmp_path))
    assert "left for data set people" in account_facts(plan)[0].sentence
    for change, text in (
        ({"dataset": "strangers"}, "no data set 'strangers' in the ledger"),
        ({"ledger": f"sqlite:///{tmp_path}/no.db"}, "make one with dpdist ledger create"),
        ({"ledger": f"sqlite:///{tmp_path}/table.parquet"}, "the file is no SQLite database"),
    ):
        assert text in account_facts(make_plan(plan.spec.model_copy(update=change)))[0].sentence


@pytest.mark.parametrize(("output", "work"), [("a", "a/work"), ("a", "a"), ("a/b", "a")])
def test_the_confidential_folder_stays_apart(tmp_path: Path, output: str, work: str) -> None:
    spec = project(tmp_path, output__path=str(tmp_path / output), work=str(tmp_path / work))
    refused(spec, errors.SpecError, "contain each other")


def test_what_is_private_stays_out_of_the_release_through_links_as_well(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "work")
    refused(project(tmp_path, output__path=str(tmp_path / "link" / "release")), errors.SpecError, "contain each other")
    refused(
        project(tmp_path, output__path=str(tmp_path), work=str(tmp_path.parent / "w")), errors.SpecError, "data.path"
    )
    apart = project(tmp_path, output__path=str(tmp_path / "a"), ledger=f"sqlite:///{tmp_path}/a/ledger.db")
    (tmp_path / "a").mkdir()
    for name in ("ledger.db", "ledger.db.kek"):
        shutil.copy(tmp_path / name, tmp_path / "a")
    refused(apart, errors.SpecError, "ledger lies inside")


@pytest.mark.parametrize("pattern", ["", "*", "**/*.parquet", "[r]*"])
def test_a_release_does_not_become_part_of_its_table(tmp_path: Path, pattern: str) -> None:
    """Else the input would have changed at the end, with the charge spent."""
    (folder := tmp_path / "in").mkdir()
    spec = project(folder, output__path=str(folder / "release"), data__path=f"{folder}/{pattern}")
    refused(spec, errors.SpecError, "covers output.path")
    changes = {"output__path": str(tmp_path / "out"), "work": str(folder / "rest"), "data__path": f"{folder}/{pattern}"}
    if not pattern.endswith("parquet"):
        refused(project(folder, **changes), errors.SpecError, "covers work")


def test_a_release_beside_the_files_of_its_table(tmp_path: Path) -> None:
    spec = project(tmp_path, data__path=str(tmp_path / "*.parquet"), work=str(tmp_path / ".work"))
    assert run_release(spec).records == 2_500


def test_a_test_key_cannot_become_a_private_release(tmp_path: Path) -> None:
    for number, (first, second) in enumerate(((KEY, None), (None, KEY), (KEY, "ff" * 32))):
        spec = project(tmp_path, name=f"release-{number}", output__path=str(tmp_path / str(number)))
        with pytest.raises(Crash):
            run_release(spec, fixed_key=first, progress=crashing(), attempt="replace")
        with pytest.raises(errors.ReleaseConflict):
            run_release(spec, fixed_key=second, attempt="resume")


def test_a_rewritten_input_with_its_old_time_is_another_input(tmp_path: Path) -> None:
    spec = project(tmp_path)
    with pytest.raises(Crash):
        run_release(spec, progress=crashing())
    path = tmp_path / "table.parquet"
    status = path.stat()
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1]]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(errors.ReleaseConflict):
        run_release(spec, attempt="resume")


def test_another_user_of_the_machine_cannot_join_the_embedded_cluster() -> None:
    with open_cluster(ClusterSpec(workers=1)) as cluster:
        address = cluster.address
        assert address is not None
        assert address.startswith("tls://127.0.0.1:")
        for scheme in ("tcp", "tls"):
            stranger = f"from distributed import Client; Client('{scheme}{address.removeprefix('tls')}', timeout=3)"
            done = subprocess.run([sys.executable, "-c", stranger], capture_output=True, timeout=60, check=False)
            assert done.returncode != 0


def test_two_ledgers_and_one_output(tmp_path: Path) -> None:
    """The one that comes second reads no record and draws no noise: it finds the claim of the first before."""
    specs = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        specs.append(project(tmp_path / name, output__path=str(tmp_path / "release")))
    one, other = specs
    with pytest.raises(Crash):
        run_release(one, progress=crashing("learning parameters"))
    seen: list[str] = []
    with pytest.raises(errors.OutputExists, match="claimed"):
        run_release(other, progress=lambda stage, *_: seen.append(stage))
    assert (states(other), seen) == (["void"], [])
    run_release(one, attempt="resume")
    assert not (tmp_path / "release" / "claim").exists()
    with pytest.raises(errors.OutputExists, match="holds a release"):
        run_release(other)
    assert (states(one), states(other)) == (["committed"], ["void"])


def test_a_release_that_failed_leaves_its_output_to_others(tmp_path: Path) -> None:
    with pytest.raises(errors.CheckFailed):
        run_release(project(tmp_path, data__minimum_records=60_000))
    run_release(project(tmp_path, name="second"))


@pytest.mark.parametrize("late", [False, True])
def test_a_claimed_output_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    """Late: by a run that took over the same dead claim at the same moment."""
    spec = project(tmp_path)
    (tmp_path / "release").mkdir()
    claim, record = tmp_path / "release" / "claim", dpdist.lifecycle.publication.write_record

    def overtaken(*arguments: Any) -> None:
        record(*arguments)
        claim.write_text("another attempt")

    if late:
        monkeypatch.setattr(dpdist.lifecycle.publication, "write_record", overtaken)
    else:
        claim.write_text("another attempt")
    with pytest.raises(errors.OutputExists, match="claimed"):
        run_release(spec)
    monkeypatch.undo()
    assert states(spec) == (["drawing"] if late else ["void"])
    claim.unlink()
    run_release(spec, attempt="resume" if late else "new")
    assert not claim.exists()


def test_too_few_pass(tmp_path: Path) -> None:
    spec = project(
        tmp_path,
        privacy__deniability__k=2_000,
        privacy__deniability__gamma=1.01,
        synthesis__omega=[1],
        synthesis__minimum_pass_rate=0.9,
    )
    with pytest.raises(errors.CheckFailed, match="minimum_pass_rate"):
        run_release(spec)
    assert not (tmp_path / "release" / "_manifest.json").exists()


def test_progress_does_not_show_how_many_candidates_pass(tmp_path: Path) -> None:
    """Prefect shows it to people who are not the operator; whether more candidates are needed is private, too."""

    def shown(folder: Path, k: int) -> tuple[set[tuple[str, int, int]], int]:
        folder.mkdir()
        omega, least = [1, 2], 0.02
        spec = project(folder, privacy__deniability__k=k, synthesis__omega=omega, synthesis__minimum_pass_rate=least)
        seen: set[tuple[str, int, int]] = set()
        run_release(spec, fixed_key=KEY, progress=lambda *report: seen.add(report))
        records = [json.loads(path.read_text()) for path in (folder / "work").rglob("run-record.json")]
        return {report for report in seen if report[0] == "synthesising"}, records[0]["candidates"]["tried"]

    (one_round, few), (several, many) = shown(tmp_path / "easy", 20), shown(tmp_path / "hard", 400)
    assert many > few, "another round was needed"
    assert one_round == several
    assert len(several) > 2, "the first round is shown"
