"""`--once`: begin, continue, or find it published. What a job may repeat without a thought."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from forkserver import Python
from outcomes import states
from releases import project
from typer.testing import CliRunner

from dpdist import errors
from dpdist.cli.commands import app
from dpdist.lifecycle.run import Run, run_release


def test_twice_is_one_release_and_one_charge(tmp_path: Path) -> None:
    spec = project(tmp_path)
    first = run_release(spec, attempt="once")
    second = run_release(spec, attempt="once")
    assert (first.already, second.already) == (False, True)
    assert second.attempt == first.attempt
    assert second.budget == first.budget
    assert states(spec) == ["committed"]


def test_what_was_interrupted_is_continued(tmp_path: Path) -> None:
    spec = project(tmp_path)
    with Run(spec, attempt="once") as run:
        steps = iter(run.steps.values())
        next(steps)()
        next(steps)()
    assert states(spec) == ["drawing"]
    outcome = run_release(spec, attempt="once")
    assert not outcome.already
    assert states(spec) == ["committed"]


def test_another_spec_under_the_same_name_is_refused(tmp_path: Path) -> None:
    run_release(project(tmp_path), attempt="once")
    with pytest.raises(errors.ReleaseConflict, match="another spec"):
        run_release(project(tmp_path, synthesis__records=2_000), attempt="once")


def test_only_the_four_words_are_known(tmp_path: Path) -> None:
    with pytest.raises(errors.SpecError, match="new, resume, once, replace"):
        run_release(project(tmp_path), attempt="again")  # type: ignore[arg-type]


def test_flags_that_exclude_each_other_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(project(tmp_path).model_dump(mode="json", by_alias=True)))
    refused = CliRunner().invoke(app, ["release", str(path), "--once", "--new-attempt"])
    assert "one of --resume, --new-attempt, --once" in str(refused.exception)
    assert states(project(tmp_path)) == []


def test_on_the_command_line_a_second_run_ends_well_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(project(tmp_path).model_dump(mode="json", by_alias=True)))
    first, second = (CliRunner().invoke(app, ["release", str(path), "--once"]) for _ in range(2))
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert "Nothing to do" not in first.stdout
    assert second.stdout.startswith("Nothing to do: it was published already, by attempt")
    assert second.stdout.endswith(first.stdout)
    third = CliRunner().invoke(app, ["release", str(path), "--once", "--json"])
    assert json.loads(third.stdout)["already"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_terminated_can_be_continued(tmp_path: Path, number: signal.Signals) -> None:
    """As the first process of a container, which no signal ends that it does not handle."""
    cluster = {"cluster__mode": "embedded", "cluster__workers": 1}
    spec = project(tmp_path, **cluster, synthesis__omega="all", synthesis__records=40_000)
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(spec.model_dump(mode="json", by_alias=True)))
    command = [sys.executable, "-m", "dpdist", "release", str(path), "--once"]
    process = Python(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert any(line.startswith("reading: done") for line in process.stderr)
    process.send_signal(number)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert "terminated" in error
    assert "Traceback" not in error
    assert not run_release(spec, attempt="once").already
    assert states(spec) == ["committed"]
