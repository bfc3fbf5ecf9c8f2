"""Mixing from the command line: accounting without a spec, the comparison of orders, a release."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from reading import readable
from releases import table
from typer.testing import CliRunner

from dpdist.cli import app
from dpdist.errors import AccountingError, SpecError
from dpdist.publish.verify import read_release, verify

SMALL = ["--class-size", "200", "--order", "8", "--records", "20", "--delta", "1e-5"]
TABLE = ["--paper", "--table-size", "500", "--table-records", "50"]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_account_mixing_gives_epsilon_or_the_noise_and_what_the_published_formula_truly_costs() -> None:
    noise = json.loads(run("account", "mixing", *SMALL, "--epsilon", "10"))
    assert noise["adjacency"] == "add/remove"
    given = ("account", "mixing", *SMALL, "--sigma-over-clip", str(noise["sigma_over_clip"]))
    cost, paper = json.loads(run(*given)), json.loads(run(*given, *TABLE))
    assert cost["epsilon"] == noise["epsilon"] == paper["epsilon_true"] == pytest.approx(10, rel=1e-2)
    assert "not a bound" in paper["accounting"]
    assert paper["epsilon"] == pytest.approx(12, rel=1e-2)


def test_account_mixing_without_noise_or_target_is_refused() -> None:
    with pytest.raises(AccountingError, match="not both"):
        CliRunner().invoke(app, ["account", "mixing", *SMALL], catch_exceptions=False)


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    import pyarrow.parquet as pq
    from releases import SCHEMA, placed

    pq.write_table(table(20_000), tmp_path / "table.parquet")
    tree: dict[str, Any] = {
        **placed(tmp_path, records=15_000),
        "kind": "mixing",
        "name": "mixed",
        "schema": SCHEMA,
        "cluster": {"mode": "threads"},
        "privacy": {"epsilon": 5, "delta": 1e-6},
        "mixing": {
            "class": "employed",
            "classes": {"yes": {"minimum": 6_000, "records": 1_500}, "no": {"minimum": 6_000, "records": 500}},
            "order": 16,
        },
    }
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(tree))
    run("ledger", "create", "people", "--epsilon", "6", "--delta", "1e-6", "--ledger", tree["ledger"])
    return tmp_path / "spec.yaml"


def test_plan_compares_the_orders(spec: Path) -> None:
    few = json.dumps({"yes": {"minimum": 150, "records": 10}})
    shown = run("plan", str(spec), "--solve", "--epsilon", "20", "--set", f"mixing.classes={few}")
    assert "noise to spread" in shown
    assert "at epsilon 20" in shown
    assert "least" in shown
    assert "512" not in readable(shown)  # more than the class


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("adult-mixing", ["--accuracy", "0.01"], "--accuracy: only with kind: synthesis"),
        ("acs2024", ["--solve"], "plan --solve: of a synthesis, --accuracy 0.01 finds the epsilon"),
        ("california-private", ["--solve"], "--solve: nothing is solved for specs of kind two-stage"),
        ("california-private", ["--accuracy", "0.01"], "--accuracy: nothing is solved for specs of kind two-stage"),
    ],
)
def test_what_is_not_solved_says_what_is(name: str, options: list[str], message: str) -> None:
    spec = str(Path(__file__).parents[3] / f"deploy/releases/{name}.yaml")
    with pytest.raises(SpecError, match=message):
        CliRunner().invoke(app, ["plan", spec, *options], catch_exceptions=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--epsilon", "1"], "--epsilon: only with --solve"),
        (["--solve", "--write", "new.yaml", "--pass-rate", "0.1"], "--pass-rate, --write: only with plausible"),
    ],
)
def test_options_that_a_plan_would_pass_over_are_refused(options: list[str], message: str) -> None:
    spec = str(Path(__file__).parents[3] / "deploy/releases/adult-mixing.yaml")
    with pytest.raises(SpecError, match=message):
        CliRunner().invoke(app, ["plan", spec, *options], catch_exceptions=False)


@pytest.mark.parametrize("form", ["records", "vectors"])
def test_a_release_is_planned_released_and_verified(form: str, spec: Path) -> None:
    folder, settings = spec.parent, ["--set", f"mixing.release={form}"]
    out = json.loads(run("release", str(spec), *settings, "--json"))
    assert out["records"] == 2_000
    report = verify(folder / "release")
    assert report.kind == "mixing"
    assert report.guarantee.startswith("(4.9")
    released = read_release(folder / "release")
    assert released.column_names[-1] == "employed"
    assert ("region=north" in released.column_names) == (form == "vectors")
    manifest = json.loads((folder / "release" / "_manifest.json").read_text())
    assert manifest["parameters"]["classes_left_out"] == []
