"""What a killed run leaves is swept by the next run and by `dpdist runs clean`; each is left by a real SIGKILL."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import forkserver
import pytest
import yaml
from commands import Command
from releases import project

from dpdist import errors
from dpdist.ledger import Books
from dpdist.publish.manifest import Manifest
from dpdist.publish.verify import verify
from dpdist.storage.store import Store

ACTOR = Path(__file__).with_name("leftover_actor.py")
HEX = "[0-9a-f]{32}"
LEFT = {  # what is left: the event before which the run is killed, the file, and where the file lies
    "a probe in the output": ("os.remove", rf"\.probe-{HEX}", "release"),
    "an unfinished probe in the output": ("os.remove", rf"\.\.probe-{HEX}\.{HEX}", "release"),
    "exact counts": ("os.rename", rf"\.run-record\.json\.{HEX}", "work"),
    "a second name of the manifest": ("os.remove", rf"\._manifest\.json\.{HEX}", "work"),
    "a part that was not finished": ("os.rename", rf"\.part-00000\.parquet\.{HEX}", "release"),
    "a second name of the claim": ("os.remove", rf"\.claim\.{HEX}", "release"),
}


def begin(folder: Path, *options: str, at: tuple[str, str] | None = None) -> Any:
    """Run a release in a process of its own, which is killed at a file if that is asked for."""
    whole = project(folder, rows=1_000).model_dump(mode="json", by_alias=True, exclude_none=True)
    spec = {name: whole[name] for name in ("name", "dataset", "schema", "data", "output", "ledger", "work")}
    spec |= {"kind": "histogram", "privacy": {"epsilon": 1}, "histograms": [{"columns": ["sex"]}]}
    spec["data"]["minimum_records"] = 500
    file = folder / "spec.yaml"
    file.write_text(yaml.safe_dump(spec))
    program = ["-m", "dpdist"] if at is None else [str(ACTOR), *at]
    done: subprocess.CompletedProcess[str] = forkserver.run(*program, "release", file, *options)
    return done


def hidden(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob(".*"))


def clean(dpdist: Command, folder: Path) -> str:
    places = ("--work", str(folder / "work"), "--output", str(folder / "release"))
    answer = dpdist("runs", "clean", "--ledger", f"sqlite:///{folder}/ledger.db", *places)
    assert answer.code == 0, answer.err
    return answer.out


@pytest.mark.parametrize("what", LEFT)
def test_the_next_run_sweeps_what_a_killed_one_left(what: str, tmp_path: Path) -> None:
    event, pattern, place = LEFT[what]
    assert begin(tmp_path, at=(event, pattern)).returncode == -9
    assert hidden(tmp_path / place), "the kill left nothing"
    again = begin(tmp_path, "--once")
    assert again.returncode == 0, again.stderr
    assert hidden(tmp_path / "release") == hidden(tmp_path / "work") == []
    assert verify(tmp_path / "release").unlisted == ()


def test_clean_sweeps_all_of_it_at_once(dpdist: Command, tmp_path: Path) -> None:
    for what in ("a probe in the output", "exact counts"):
        assert begin(tmp_path, at=LEFT[what][:2]).returncode == -9
    found = hidden(tmp_path / "release") + hidden(tmp_path / "work")
    assert found
    said = clean(dpdist, tmp_path)
    assert all(name in said for name in found)
    assert hidden(tmp_path / "release") == hidden(tmp_path / "work") == []


def test_parts_and_claim_of_an_attempt_that_was_given_up(dpdist: Command, tmp_path: Path) -> None:
    output = tmp_path / "release"
    assert begin(tmp_path, at=("os.remove", rf"\._manifest\.json\.{HEX}")).returncode == -9
    url = f"sqlite:///{tmp_path}/ledger.db"
    ledger = Books.open(url)
    (attempt,) = ledger.show("people").attempts
    left = Store(output).names()
    assert "claim" in left
    assert any(name.startswith(f"data/{attempt.id[:8]}/") for name in left)
    clean(dpdist, tmp_path)
    assert Store(output).names() == left, "the attempt may be resumed"
    assert dpdist("ledger", "give-up", attempt.id, "--yes", "--ledger", url).code == 0
    said = clean(dpdist, tmp_path)
    assert all(name in said for name in left)
    assert list(output.rglob("*")) == [output / "data"]


def test_a_new_attempt_publishes_nothing_of_the_one_before(tmp_path: Path) -> None:
    assert begin(tmp_path, at=("os.remove", rf"\._manifest\.json\.{HEX}")).returncode == -9
    again = begin(tmp_path, "--new-attempt")
    assert again.returncode == 0, again.stderr
    assert verify(tmp_path / "release").unlisted == ()


def test_what_others_put_there_and_what_is_being_written_stays(dpdist: Command, tmp_path: Path) -> None:
    assert begin(tmp_path).returncode == 0
    output = tmp_path / "release"
    for name in (".hidden", "note.txt", "data/other.parquet", f".half.{'a' * 32}"):
        (output / name).write_bytes(b"x")
    program = (
        "import fcntl, sys; file = open(sys.argv[1]); fcntl.flock(file, fcntl.LOCK_EX); print(flush=True); input()"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", program, str(output / f".half.{'a' * 32}")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout is not None
    writer.stdout.readline()
    clean(dpdist, tmp_path)
    assert hidden(output) == [f".half.{'a' * 32}", ".hidden"]
    assert (output / "note.txt").exists()
    assert (output / "data" / "other.parquet").exists()
    writer.kill()
    writer.wait()
    clean(dpdist, tmp_path)
    assert hidden(output) == [".hidden"]
    assert isinstance(Manifest.from_bytes((output / "_manifest.json").read_bytes()), Manifest)


def test_a_second_name_of_the_key_encryption_key(dpdist: Command, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    words = ("ledger", "create", "people", "--epsilon", "50", "--delta", "1e-5", "--ledger", url)
    died = forkserver.run(str(ACTOR), "os.remove", r"\.ledger\.db\.kek\..*", *words)
    assert died.returncode == -9, died.stderr
    (second,) = tmp_path.glob(".ledger.db.kek.*")
    assert os.path.samefile(second, tmp_path / "ledger.db.kek")
    assert dpdist(*words).code == 0
    assert dpdist("runs", "clean", "--ledger", url, "--work", str(tmp_path / "work")).code == 0
    assert not list(tmp_path.glob(".ledger.db.kek.*"))
    assert (tmp_path / "ledger.db.kek").exists()


def test_the_details_of_internal_errors(dpdist: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    old, new = tmp_path / "dpdist-error-old.txt", tmp_path / "dpdist-error-new.txt"
    for path in (old, new):
        path.write_text("secret")
    os.utime(old, (time.time() - 8 * 24 * 3600,) * 2)
    from dpdist.storage.local import sweep_reports

    assert sweep_reports() == [str(old)]
    Books.open(f"sqlite:///{tmp_path}/ledger.db").close()
    assert (
        dpdist("runs", "clean", "--ledger", f"sqlite:///{tmp_path}/ledger.db", "--work", str(tmp_path / "w")).code == 0
    )
    assert not new.exists()


@pytest.mark.parametrize("pattern", ["work", "release", "data", HEX[:-4] + r"{8}-.*", "[0-9a-f]{8}"])
def test_a_full_disk_at_one_folder_is_said(pattern: str, tmp_path: Path) -> None:
    full = begin(tmp_path, at=("full:os.mkdir", pattern))
    assert full.returncode == errors.OutOfDisk.exit_code, full.stderr
    assert "no space is left" in full.stderr
