"""Alarms and board: they ask for metrics that exist, each alarm has a runbook, and Prometheus itself fires them."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from needs import need

from dpdist.ledger.statement import METRICS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "monitoring"
RULES: list[dict[str, Any]] = yaml.safe_load((FOLDER / "dpdist.rules.yaml").read_text())["groups"][0]["rules"]
BOARD: dict[str, Any] = json.loads((FOLDER / "grafana-board.json").read_text())
QUERIES = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]


def test_alarms_and_board_ask_for_metrics_that_there_are() -> None:
    asked = set(re.findall(r"\bdpdist_[a-z_]+", "\n".join([*QUERIES, *(rule["expr"] for rule in RULES)])))
    assert asked - set(METRICS) == set()
    assert asked >= {name for name in METRICS if "ratio" in name or ("timestamp" in name and "period" not in name)}


def test_each_alarm_has_a_runbook() -> None:
    headings = re.findall(r"^#{2,} (.+)$", (ROOT / "deploy" / "monitoring" / "README.md").read_text(), re.MULTILINE)
    anchors = {heading.lower().replace(" ", "-") for heading in headings}
    for rule in RULES:
        file, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert file == "deploy/monitoring/README.md"
        assert anchor in anchors, rule["alert"]


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])


@pytest.mark.slow
def test_each_alarm_fires_when_it_should() -> None:
    need("promtool", "Prometheus", "prometheus")
    for command in (["check", "rules", str(FOLDER / "dpdist.rules.yaml")], ["test", "rules", "dpdist.rules.test.yaml"]):
        done = subprocess.run(["promtool", *command], cwd=Path(__file__).parent, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
