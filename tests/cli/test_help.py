"""Help that people can read: 80 columns, words, commands in groups, and examples that run as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main
from commands import Command

from dpdist.api import display
from dpdist.cli.commands import app
from dpdist.cli.help import EXAMPLES, GROUPS, commands_of
from dpdist.privacy.formatting import WIDTH

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
