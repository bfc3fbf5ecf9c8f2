import json
from pathlib import Path

import numpy as np
import pytest

from dpdist.evaluation.page.sections import PageSection, PageTable, does_not_apply, plain


def test_a_section_is_json() -> None:
    table = PageTable("t", ("a", "b"), ((np.float32(0.5), "x"), (np.int64(3), None)), note="n")
    figures = {"mean": np.float64("nan"), "counts": np.arange(3), "ends": (1, float("inf")), "ok": np.bool_(True)}
    section = PageSection("marginals", "Marginals", "Fine.", "good", tables=(table,), figures=figures)
    read = json.loads(json.dumps(section.to_json(), allow_nan=False))
    assert read["figures"] == {"mean": None, "counts": [0, 1, 2], "ends": [1, None], "ok": True}
    assert read["tables"][0]["rows"] == [[0.5, "x"], [3, None]]


def test_rows_have_as_many_cells_as_there_are_columns() -> None:
    with pytest.raises(ValueError, match="needs 2 cells"):
        PageTable("t", ("a", "b"), (("x",),))


def test_what_json_does_not_know_is_refused() -> None:
    with pytest.raises(TypeError, match="PosixPath"):
        plain({"folder": Path("x")})


def test_a_part_that_does_not_apply_says_why() -> None:
    section = does_not_apply("models", "Models", "the release holds counts, not records.")
    assert section.state == "info"
    assert "the release holds counts" in section.verdict
    assert section.to_json()["figures"]["applies"] is False
