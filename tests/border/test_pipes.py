"""A pipe with the name of a leftover does not make the next run wait."""

from __future__ import annotations

import os
from pathlib import Path

from dpdist.storage.local import PROBE
from dpdist.storage.store import Store


def test_the_sweeper_does_not_open_pipes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"{PROBE}pipe")
    (tmp_path / f"{PROBE}file").touch()
    assert Store(tmp_path).sweep() == (f"{PROBE}file",)
    assert (tmp_path / f"{PROBE}pipe").exists()
