"""The manifests for those without Helm are the chart's."""

from __future__ import annotations

import subprocess
import sys

import pytest
import yaml
from charts import EXAMPLES, ROOT, example, need_tools, render

FOLDER = ROOT / "deploy" / "kubernetes"


@pytest.fixture(autouse=True)
def _tools() -> None:
    need_tools()


def test_they_are_in_step() -> None:
    command = [sys.executable, str(FOLDER / "render.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", EXAMPLES)
def test_they_are_what_helm_installs(name: str) -> None:
    """Read back as Kubernetes would read them."""
    assert [m for m in yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text()) if m] == render(
        example(name)
    ).manifests
