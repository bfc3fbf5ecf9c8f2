"""Arrays that are made without `pyarrow.array` equal those that it makes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dpdist.publish.parts import lists, numbers, texts


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.int64, np.uint32, np.float64])
@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 1000])
def test_numbers(dtype: type, rows: int) -> None:
    rng = np.random.default_rng(rows)
    values = rng.integers(0, 200, rows).astype(dtype)
    missing = rng.random(rows) < 0.3
    assert numbers(values).equals(pa.array(values))
    made = numbers(values, missing=missing)
    made.validate(full=True)
    assert made.equals(pa.array(values, mask=missing))
    assert numbers(values[::2]).equals(pa.array(values[::2]))


@pytest.mark.parametrize("values", [[], [""], ["a", "", "bß€", "\x00"], ["x" * 1000] * 3])
def test_texts(values: list[str]) -> None:
    made = texts(values)
    made.validate(full=True)
    assert made.equals(pa.array(values, pa.string()))


def test_lists() -> None:
    for values in ([], [np.arange(3)], [np.arange(0), np.array([5], np.int32), np.arange(4)]):
        made = lists(values)
        made.validate(full=True)
        assert made.equals(pa.array([value.tolist() for value in values], pa.list_(pa.int64())))
