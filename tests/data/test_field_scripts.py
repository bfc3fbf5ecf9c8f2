"""Tables and codebooks as people have them: one script for each kind of fault, where they are at hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("DPDIST_DATA", ROOT.parent / "shared" / "data")).parent / "field"
SCRIPTS = sorted(FOLDER.glob("[0-9]*.py"))


@pytest.mark.slow
@pytest.mark.skipif(not (SCRIPTS and os.environ.get("DPDIST_FIELD")), reason="they run with DPDIST_FIELD=1")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_kind_of_fault_is_mended(script: Path, tmp_path: Path) -> None:
    environment = os.environ | {"DPDIST": str(Path(sys.executable).with_name("dpdist")), "CASES_WORK": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-2_000:]
