"""Text for a terminal: 80 columns, labels, tables and options; the guarantee once; help that people can read."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
from commands import Command

from dpdist.api import display
from dpdist.cli.commands import app
from dpdist.cli.help import EXAMPLES, GROUPS, commands_of
from dpdist.cli.shared import guarantee_lines
from dpdist.privacy.formatting import WIDTH, folded
from dpdist.privacy.guarantee import LID, DifferentialPrivacy, Guarantee, PlausibleDeniability

MODEL = DifferentialPrivacy(epsilon=1, delta=1e-9, adjacency="add/remove", covers="the model")
RECORD = PlausibleDeniability(k=50, gamma=4, epsilon0=1, epsilon=1.2, delta=1e-9)


def test_what_follows_a_label_stays_below_its_beginning() -> None:
    lines = folded(f"Budget      {'left ' * 40}").split("\n")
    assert all(len(line) <= WIDTH for line in lines)
    assert lines[0].startswith("Budget      left")
    assert all(line.startswith(" " * 12 + "left") for line in lines[1:])
    assert " ".join(" ".join(lines).split()) == f"Budget {'left ' * 40}".strip()


@pytest.mark.parametrize(
    "line", ["--set " + "a=b," * 40, "    8       2          24        10 s " + " " * 40 + "39%  start"]
)
def test_options_and_tables_are_not_cut(line: str) -> None:
    assert folded(line) == line


def test_words_are_not_cut() -> None:
    path = "s3://" + "x" * 100
    assert folded(f"Release     {path}").split()[-1] == path


def test_the_guarantee_is_one_sentence_and_what_all_assume_is_said_once() -> None:
    lines = guarantee_lines([MODEL.to_json(), RECORD.to_json()])
    assert lines[0] == "Guarantee   (1, 1e-9)-differential privacy for the model (add/remove)."
    assert sum("computational" in line for line in lines) == 1
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == ["Guarantee", "Meaning"]
    assert "computational" not in " ".join(guarantee_lines([LID(bound=0.3).to_json()]))


@pytest.mark.parametrize("guarantee", [MODEL, RECORD, LID(bound=0.3, columns=(), original=("a",))])
def test_nothing_of_a_sentence_is_lost(guarantee: Guarantee) -> None:
    shown = " ".join(" ".join(guarantee_lines([guarantee.to_json()])).split()).lower()
    for part in (guarantee.statement(), guarantee.meaning()):
        assert part.lower() in shown
        assert part in guarantee.sentence()


def test_a_guarantee_of_another_version_is_shown_by_its_sentence() -> None:
    assert guarantee_lines([{"kind": "new", "sentence": "It is kept."}]) == ["Guarantee   It is kept."]


def test_a_long_error_is_a_sentence_and_details() -> None:
    """As many words as before, none of them cut; short ones stay as they are."""
    from dpdist.cli.shared import error_text

    short = "dpdist: the spec is wrong: " + "a.b, " * 50
    assert error_text(short) == short
    long = "dpdist: the ledger of data set 'acs' is damaged: entry 3; " + "restore it from a backup, " * 20 + "/a" * 80
    told = error_text(f"{short}\n{long}")
    first, sentence, *details = told.split("\n")
    assert (first, sentence) == (short, "dpdist: the ledger of data set 'acs' is damaged: entry 3")
    assert all(line.startswith("  ") and (len(line) <= 100 or "/a" in line) for line in details)
    assert " ".join(told.split()) == " ".join(f"{short}\n{long}".replace("entry 3; ", "entry 3 ").split())


def test_an_error_on_a_terminal_is_folded_at_spaces() -> None:
    from dpdist.cli.shared import error_text

    text = "dpdist: the spec is not valid:\nmodel.rounds: " + "expected a number, " * 9 + "/a" * 60
    lines = error_text(text, terminal=True).split("\n")
    assert all(len(line) <= WIDTH or "/a" in line for line in lines)
    assert " ".join(" ".join(lines).split()) == " ".join(text.split())


def test_a_shell_completes_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from dpdist.cli.commands import app

    words = {"COMP_WORDS": "dpdist led", "COMP_CWORD": "1", "_DPDIST_COMPLETE": "complete_bash"}
    assert CliRunner().invoke(app, [], prog_name="dpdist", env=words).output.split() == ["ledger"]
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("bash", "/bin/bash"))  # not that of whoever runs the test
    assert "complete_bash" in CliRunner().invoke(app, ["--show-completion"], prog_name="dpdist").output


@pytest.mark.parametrize("forced", [False, True])
def test_rich_is_imported_where_bars_are_drawn(forced: bool) -> None:
    code = "import sys; from dpdist.api.display import bars\nwith bars(): pass\nprint('rich' in sys.modules)"
    own = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "TTY_COMPATIBLE")}
    env = own | ({"TTY_COMPATIBLE": "1"} if forced else {})
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(forced)]
    assert "total" in done.stderr


@pytest.mark.parametrize("error", [None, type("Written", (), {"write": lambda *_: None, "flush": lambda *_: None})()])
def test_nobody_reads_the_progress(error: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard error is closed, or stands for something that is no terminal."""
    from dpdist.api.display import bars

    monkeypatch.setattr(sys, "stderr", error)
    with bars() as progress:
        progress("counting", 1, 1)


def test_the_total_time_comes_last(capsys: pytest.CaptureFixture[str]) -> None:
    from dpdist.api.display import bars

    with bars() as progress:
        progress("counting", 1, 1)
    first, last = capsys.readouterr().err.splitlines()
    assert first == "counting: done"
    assert last.startswith("total: ")


# --- Help that people can read: 80 columns, words, commands in groups, and examples that run as they stand


ROOT: Any = typer.main.get_command(app)


def _command(path: str) -> Any:
    found = ROOT
    for name in path.split():
        found = found.commands[name]
    return found


def test_every_command_has_an_example_and_a_place() -> None:
    assert {name for name, _ in commands_of(app)} == set(EXAMPLES)
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(ROOT.commands)


@pytest.mark.parametrize("path", EXAMPLES)
def test_examples_are_understood_and_no_type_is_shown(path: str, dpdist: Command) -> None:
    words = shlex.split(re.split(r" [>|] ", EXAMPLES[path])[0])
    place = path.split()
    assert words[: len(place)] == place
    _command(path).make_context(place[-1], words[len(place) :])  # refuses unknown options and missing arguments
    text = dpdist(*place, "-h").out
    assert max(map(len, text.splitlines())) <= WIDTH
    assert not re.search(r"[<{]|\blist\b\[|\.{4}", text)
    assert "Example: dpdist" in text


def test_groups_come_in_their_order(dpdist: Command) -> None:
    text = dpdist("--help").out
    assert [title for title in re.findall(r"^(\w+):", text, re.M) if title in GROUPS] == list(GROUPS)
    assert "Show data sets" in dpdist("ledger", "-h").out


def test_quiet_shows_no_progress(dpdist: Command, tmp_path: Any) -> None:
    for number, (options, lines) in enumerate([((), 1), (("--quiet",), 0), ((), 1)]):
        done = dpdist("sample", str(tmp_path / f"t{number}"), "--rows", "1000", *options)
        assert done.err.count("writing rows: done") == lines
        assert "1,000 invented rows" in done.out


def test_bars_show_the_time_that_remains() -> None:
    from rich.console import Console
    from rich.progress import TimeRemainingColumn

    console = Console(width=WIDTH)
    assert any(isinstance(column, TimeRemainingColumn) for column in display.stage_bars(console).columns)


def test_examples_are_listed_and_copied(dpdist: Command, tmp_path: Path) -> None:
    assert re.search(r"^demo +Records drawn from a model", dpdist("examples").out, re.M)
    assert dpdist("examples", "demo").out == "demo.yaml\nschemas/acs2013.yaml\n"
    assert "path: demo/census\n" in Path("demo.yaml").read_text()  # beside the copy, not two folders above it
    assert "(1, 1e-9)-differential privacy" in dpdist("plan", "demo.yaml").out
    assert "did you mean 'demo'" in dpdist("examples", "demoo").err
    assert dpdist("examples", "demo").code != 0
