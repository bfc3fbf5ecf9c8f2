"""The command line: every command on real input, every error with its own exit code and without a traceback."""

import json
import logging
import os
import re
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import forkserver
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
import typer
import yaml
from commands import Command
from reading import readable
from releases import KEY, project, table

from dpdist.errors import GuaranteeRefused
from dpdist.ledger import Books
from dpdist.privacy.events import ApproximateDP, Gaussian


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
    return forkserver.run("-m", "dpdist", *arguments)


@pytest.fixture
def spec_file(tmp_path: Path) -> Path:
    spec = project(tmp_path)
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(spec.model_dump(mode="json", by_alias=True)))
    return path


def test_help_is_at_once() -> None:
    command = [sys.executable, "-m", "dpdist", "--help"]
    assert "release" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
    heavy = subprocess.run(
        [sys.executable, "-c", "import sys, dpdist.cli; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert not {"dask", "distributed", "numpy", "pyarrow", "sqlalchemy", "pydantic", "scipy"} & set(heavy)


@pytest.mark.parametrize(
    ("command", "spec", "unused"),
    [
        ("plan", None, {"pyarrow", "dpdist.data.table", "dpdist.lifecycle.run"}),
        ("plan", "deploy/releases/demo.yaml", {"pyarrow", "scipy", "numpy.ma", "dpdist.lifecycle.run"}),
        ("release", None, {"alembic", "pyarrow.dataset", "dpdist.inference"}),
    ],
)
def test_a_command_imports_what_it_needs(command: str, spec: str | None, unused: set[str], spec_file: Path) -> None:
    """Its first stage waits for imports; a release in this process needs no scheduler."""
    code = "import sys, atexit; from dpdist.cli import main; atexit.register(lambda: print(*sys.modules)); main()"
    options = [
        command,
        str(Path(__file__).parents[2] / spec if spec else spec_file),
        "--set",
        "cluster={mode: in-process}",
        "--json",
    ]
    done = subprocess.run([sys.executable, "-c", code, *options], capture_output=True, text=True, check=True)
    imported = set(done.stdout.splitlines()[-1].split())
    assert "dpdist.families.base.registry" in imported
    assert not {"dask", "distributed", "pandas", "sqlalchemy.dialects.postgresql", *unused} & imported


def test_a_command_builds_its_own_parser_alone(monkeypatch: pytest.MonkeyPatch, dpdist: Command) -> None:
    built: list[int] = []

    def call(app: typer.Typer, **_: object) -> None:
        built.append(len(app.registered_commands) + len(app.registered_groups))
        raise SystemExit

    assert "Did you mean 'plan'" in dpdist("pln").err
    assert "create" in dpdist("ledger", "--help").out
    monkeypatch.setattr(typer.Typer, "__call__", call)
    for asked in ("plan", "ledger", "pln", "--help"):
        dpdist(asked)
    assert built[:2] == [1, 1]
    assert min(built[2:]) > 10


def test_from_ledger_to_verified_release(spec_file: Path, tmp_path: Path) -> None:
    planned = run("plan", str(spec_file))
    assert planned.returncode == 0, planned.stderr
    assert "add/remove" in planned.stdout
    assert "left for data set people" in planned.stdout
    released = run("release", str(spec_file), "--set", "synthesis.records=1500")
    assert released.returncode == 0, released.stderr
    assert str(tmp_path / "release") in released.stdout
    assert "Guarantee" in released.stdout
    assert "left for data set people" in released.stdout
    checked = run("verify", str(tmp_path / "release"))
    assert checked.returncode == 0, checked.stderr
    assert "1,500 records" in checked.stdout
    shown = run("ledger", "show", "people", "--ledger", f"sqlite:///{tmp_path}/ledger.db", "--json")
    assert json.loads(shown.stdout)[0]["charges"][0]["state"] == "committed"
    assert run("ledger", "verify", "--ledger", f"sqlite:///{tmp_path}/ledger.db").returncode == 0
    part = next((tmp_path / "release" / "data").rglob("*.parquet"))
    part.write_bytes(part.read_bytes()[:-1])
    broken = run("verify", str(tmp_path / "release"))
    assert (broken.returncode, "Traceback" in broken.stderr) == (6, False)
    assert part.name in broken.stderr


def test_version_is_that_of_the_package() -> None:
    assert run("--version").stdout == f"dpdist {metadata.version('dpdist')}\n"


def test_plan_json_carries_the_charge_and_reads_nothing(dpdist: Command, spec_file: Path, tmp_path: Path) -> None:
    (tmp_path / "table.parquet").unlink()
    answer = dpdist("plan", str(spec_file), "--json").json
    assert 1.5 < answer["epsilon"] <= 2
    assert answer["delta"] == 1e-7
    assert answer["guarantees"][0]["kind"] == "plausible-deniability"


def test_plan_begins_with_what_people_ask_first(dpdist: Command, spec_file: Path) -> None:
    titles = [line.split()[0] for line in dpdist("plan", str(spec_file)).out.splitlines() if line[:1].strip()]
    assert not {"Meaning", "Charge", "Tasks"} & set(titles)
    assert titles[:2] == ["Release", "Guarantee"]
    more = [
        line.split()[0] for line in dpdist("plan", str(spec_file), "--details").out.splitlines() if line[:1].strip()
    ]
    assert {"Meaning", "Charge", "Tasks"} <= set(more)
    assert "<list[str]>" not in dpdist("schema", "draft", "-h").out


def test_creating_a_data_set(dpdist: Command, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/l.db"
    assert dpdist("ledger", "create", "acs", "--epsilon", "4", "--delta", "1e-8", "--ledger", url).code == 0
    again = dpdist("ledger", "create", "acs", "--epsilon", "4", "--delta", "1e-8", "--ledger", url)
    assert (again.code, "Traceback" in again.err) == (5, False)
    assert dpdist("ledger", "create", "x", "--epsilon", "-1", "--delta", "1e-8", "--ledger", url).code != 0
    assert "acs" in dpdist("ledger", "show", "--ledger", url).out
    head = dpdist("ledger", "show", "--ledger", url, "--json").json[0]["head"]
    verify = ("ledger", "verify", "acs", "--ledger", url, "--receipt")
    assert dpdist(*verify, head).code == 0
    other = dpdist(*verify, head[::-1])
    assert (other.code, "is not in the journal" in other.err) == (5, True)


def test_spec_schema_is_json(dpdist: Command) -> None:
    schema = dpdist("spec", "schema").json
    assert {"plausible-deniability", "mixing"} <= set(schema["discriminator"]["mapping"])


def test_sample_writes_rows(dpdist: Command, tmp_path: Path) -> None:
    assert dpdist("sample", str(tmp_path / "t"), "--rows", "1234").code == 0
    assert pq.read_table(tmp_path / "t").num_rows == 1234


def test_account_plausible_deniability(dpdist: Command) -> None:
    words = "--k 2000 --gamma 2 --epsilon0 0.02 --passing-mass 367500 --records 10000 --delta 1e-9"
    answer = dpdist("account", "plausible-deniability", *words.split(" ")).json
    assert answer["epsilon"] == pytest.approx(0.913, rel=0.02)
    assert answer["epsilon_published_composition"] == pytest.approx(21.8, rel=0.02)
    assert answer["epsilon_per_record"] < 0.1


@pytest.mark.parametrize(
    ("setting", "code"),
    [
        ("split.seeds=0.4", 2),
        ("privacy.model.epsilon=0", 2),
        ("privacy.model.epsilon=-1", 2),
        ("privacy.deniability.k=20000", 2),
        ("data.path=/nowhere/table.parquet", 3),
        ("data.minimum_records=60000", 4),
        ("privacy.limit=0.1", 4),
        ("dataset=nobody", 5),
        ("ledger=sqlite:////nowhere/ledger.db", 5),
        ("output.path=/proc/release", 6),
        ("cluster={mode: address, address: 'tcp://127.0.0.1:9', timeout: 1}", 7),
    ],
)
def test_errors_have_codes_and_no_traceback(
    dpdist: Command, spec_file: Path, tmp_path: Path, setting: str, code: int
) -> None:
    result = dpdist("release", str(spec_file), "--set", setting)
    assert result.code == code, result.err
    assert "Traceback" not in result.err
    assert result.err.strip()
    assert not (tmp_path / "release" / "_manifest.json").exists()
    assert dpdist("ledger", "verify", "--ledger", f"sqlite:///{tmp_path}/ledger.db").code == 0


def test_an_open_attempt_is_given_up(dpdist: Command, spec_file: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    ledger = Books.open(url)
    request = {"spec_hash": "s", "input_fingerprint": "i", "guarantee": "dp", "event": ApproximateDP(epsilon=1)}
    reserved, drawing = (ledger.reserve(dataset="people", release=name, **request) for name in ("one", "two"))
    ledger.mark_drawing(drawing)
    ledger.close()
    for attempt, outcome in (
        (reserved, "void: its charge is given back"),
        (drawing, "abandoned: its charge stays spent"),
    ):
        words = ("ledger", "give-up", attempt.id[:13], "--ledger", url)
        asked = dpdist(*words)
        assert (asked.code, "Give it up?" in asked.out) == (1, True), "nobody said yes"
        done = dpdist(*words, "--yes")
        assert (done.code, outcome in done.out) == (0, True), done.err
    shown = dpdist("ledger", "show", "people", "--ledger", url, "--json").json
    assert [charge["state"] for charge in shown[0]["charges"]] == ["void", "abandoned"]
    for unknown in ("00000000", reserved.id[:7]):
        refused = dpdist("ledger", "give-up", unknown, "--ledger", url, "--yes")
        assert (refused.code, "Traceback" in refused.err) == (5, False)


def test_output_that_holds_a_release(dpdist: Command, spec_file: Path) -> None:
    assert dpdist("release", str(spec_file), "--test-key", KEY).code == 0
    again = dpdist("release", str(spec_file), "--set", "name=second")
    assert again.code == 6
    assert "already holds a release" in again.err


def test_a_csv_read_with_a_header_it_does_not_have_shows_no_value(
    dpdist: Command, spec_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text("north,33,1,secret-7,yes\n" * 30_000)
    result = dpdist("release", str(spec_file), "--set", f"data.path={tmp_path}/t.csv")
    assert result.code == 3
    assert "data.csv.header" in result.err
    assert "secret" not in result.err
    assert not re.search(r"(?<!\w)33(?!\w)", readable(result.err))


def test_an_unforeseen_error_shows_neither_text_nor_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dpdist import cli
    from dpdist.cli import commands

    def fail(**_: object) -> None:
        raise RuntimeError("secret value 42")

    monkeypatch.setattr(commands, "app", fail)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    message = capsys.readouterr().err
    assert caught.value.code == 70
    assert "RuntimeError" in message
    assert "secret" not in message
    file = Path(message.split("The details are in ")[1].split(":")[0])
    assert "secret value 42" in file.read_text()
    assert file.stat().st_mode & 0o077 == 0
    file.unlink()


def test_a_value_out_of_its_domain_is_not_shown(dpdist: Command, spec_file: Path, tmp_path: Path) -> None:
    bad = table(30_000).to_pydict()
    bad["score"][5] = 987_654_321
    pq.write_table(type(table(1)).from_pydict(bad), tmp_path / "table.parquet")
    result = dpdist("release", str(spec_file))
    assert result.code == 3
    assert "score" in result.err
    assert "987654321" not in re.sub(r"\D", "", readable(result.err)), "however it is written"


def test_an_end_while_a_connection_closes_prints_no_traceback(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """SQLAlchemy's pool logs whatever ends the closing of a connection, also the exit that a signal asks for."""
    from dpdist.cli import commands

    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(commands, "_signals", [])
    caplog.set_level(logging.ERROR, logger="sqlalchemy")
    engine = sa.create_engine(f"sqlite:///{tmp_path}/any.db", poolclass=sa.NullPool)
    monkeypatch.setattr(engine.dialect, "do_close", lambda _: commands._terminated(signal.SIGTERM, None))
    with pytest.raises(SystemExit) as caught, engine.connect() as connection:
        connection.execute(sa.text("SELECT 1"))
    assert caught.value.code == 128 + signal.SIGTERM
    assert capsys.readouterr().err.startswith("dpdist: terminated")
    assert not caplog.records


def test_the_account_is_shown_in_80_columns(dpdist: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each filter is shown with what is left, and a data set says whether one release has it for itself."""
    monkeypatch.setenv("COLUMNS", "80")
    url = f"sqlite:///{tmp_path}/l.db"
    ledger = Books.open(url)
    request = {"spec_hash": "s", "input_fingerprint": "f", "guarantee": "dp"}
    for name, delta in (("acs", "1e-8"), ("own", "1e-9")):
        ledger.create_dataset(name, epsilon=1, delta=delta)
        for number in range(2 if name == "acs" else 1):
            event = Gaussian(20.0 if name == "acs" else 5.6)
            ledger.reserve(dataset=name, release=f"a-release-with-a-long-name-{number}", event=event, **request)
    ledger.close()
    shown = dpdist("ledger", "show", "--ledger", url).out
    assert max(map(len, shown.splitlines())) <= 80
    names, left = shown.splitlines()[1:3]
    assert names.split("  ")[0:2] == ["", "filter"]
    assert len(names) == len(left)
    assert re.search(r"left +[\d.]+ % +[\d.]+ %", left)
    assert "no filter holds: no further release is admitted" in shown


def test_what_no_budget_covers_is_said_before_the_number(dpdist: Command, tmp_path: Path) -> None:
    """By default a data set allows no such release; where its custodian allows them by name, they are counted first."""
    url, request = f"sqlite:///{tmp_path}/ledger.db", {"spec_hash": "s", "input_fingerprint": "f"}
    assert dpdist("ledger", "create", "own", "--epsilon", "1", "--delta", "1e-6").code == 0
    kinds = ("--allow", "dp", "--allow", "pd-per-record", "--allow", "lid")
    assert dpdist("ledger", "create", "acs", "--epsilon", "1", "--delta", "1e-6", *kinds).code == 0
    ledger = Books.open(url)
    charges: list[tuple[str, Any]] = [("pd-per-record", Gaussian(50.0)), ("lid", None), ("lid", None)]
    for number, (guarantee, event) in enumerate(charges):
        charge = {"release": f"r{number}", "guarantee": guarantee, "event": event, **request}
        ledger.reserve(dataset="acs", **charge)
        with pytest.raises(GuaranteeRefused, match="allows the guarantees dp, not"):
            ledger.reserve(dataset="own", **charge)
    ledger.close()
    said = "no budget covers the seeds of 1 per-record release and 2 releases without differential privacy"
    shown = dpdist("ledger", "show", "acs")
    assert f"acs {said}; epsilon" in shown.words
    assert dpdist("ledger", "show", "--json").json[0]["uncovered"] == [said]
    assert dpdist("ledger", "show", "own", "--json").json[0]["uncovered"] == []


@pytest.mark.parametrize(
    ("command", "charges"),
    [
        (("plan", "spec.yaml"), False),
        (("contract", "check", "people.yaml"), False),
        (("evaluate", "release"), False),
        (("evaluate", "release", "--publish", "0.5"), True),
        (("release", "spec.yaml"), True),
    ],
)
def test_a_command_that_charges_nothing_speaks_of_no_charge(
    command: tuple[str, ...], charges: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dpdist.cli import commands

    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(commands, "_signals", [])
    monkeypatch.setattr("sys.argv", ["dpdist", *command])
    with pytest.raises(SystemExit):
        commands._terminated(signal.SIGTERM, None)
    assert ("charged" in capsys.readouterr().err) == charges


def test_what_is_printed_is_utf8_whatever_the_locale(tmp_path: Path) -> None:
    fields = [{"name": "q", "type": "string", "constraints": {"enum": ["a", "Łódź"], "required": True}}]
    (tmp_path / "s.json").write_text(json.dumps({"fields": fields}))
    command = [sys.executable, "-m", "dpdist", "schema", "draft", "s.json"]
    environment = {**os.environ, "PYTHONIOENCODING": "cp1252"}
    drafted = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=True).stdout
    assert "Łódź" in drafted.decode("utf-8")
