"""One request of an evaluation, from a file, from options and from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpdist.errors import SpecError
from dpdist.evaluation.request import Request

TOLD = """
release: out/first
against: [table.parquet, s3://bucket/more.parquet]
holdout: others.parquet
train: 100
publish: 0.5
attacks: false
"""


def test_a_file_says_what_options_say_and_its_paths_are_from_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("asked").mkdir()
    Path("asked/evaluation.yaml").write_text(TOLD)
    options = {
        "release": "asked/out/first",
        "against": ("asked/table.parquet", "s3://bucket/more.parquet"),
        "holdout": "asked/others.parquet",
        "train": 100,
        "publish": 0.5,
        "attacks": False,
    }
    assert Request.read(Path("asked/evaluation.yaml"), {}) == Request.of(options)
    replaced = Request.read(Path("asked/evaluation.yaml"), {"against": ["here.parquet"], "attacks": True})
    assert replaced == Request.of({**options, "against": ("here.parquet",), "attacks": True})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"targets": "age"}, "did you mean .target."),
        ({"train": "many"}, "train: expected an integer"),
        ({"against": 3}, "against: expected a list"),
        ({"train": 10}, "50 records or more"),
        ({"executor": "tcp://127.0.0.1:1"}, "executor: no setting"),
        ({"release": None}, "release: expected a text"),
    ],
)
def test_what_is_wrong_with_a_setting_is_said(given: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError, match=told):
        Request.of({"release": "out", **given})
