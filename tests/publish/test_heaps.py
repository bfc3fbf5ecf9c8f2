"""Values that many records share are released as they are, numbers as people write them, booleans as booleans."""

from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from dpdist.api.released import to_pandas
from dpdist.data.encode import TableEncoder
from dpdist.data.released import ReleaseDecoder
from dpdist.evaluation.records import code_labels
from dpdist.privacy.noise import Noise
from dpdist.publish.columns import columns
from dpdist.publish.part_format import PartFormat
from dpdist.publish.parts import decode
from dpdist.spec.conditions import parse_condition
from dpdist.spec.regression import numbers_in
from dpdist.spec.schema import Schema


def schema(**settings: Any) -> Schema:
    given = {"name": "x", "kind": "number", "bounds": [-10, 100], "bins": {"count": 4}, **settings}
    return Schema.model_validate({"attributes": [given]})


def released(of: Schema, values: Any, form: PartFormat | None = None) -> pa.Table:
    """Values that went through codes, and back."""
    batch = pa.record_batch({"x": values})
    codes = TableEncoder(of).encode(batch).codes
    return decode(of, codes, form=form or PartFormat(values="values", bins="uniform"), noise=Noise(bytes(32)))


def test_a_heap_comes_back_as_it_is_and_the_rest_of_its_bin_does_not() -> None:
    values = np.tile([0.0, 1e-9, -1e-9, 50.0, 99.0], 200)
    found = released(schema(heaps=[0, 50]), values)["x"].to_numpy()
    assert ((found == values) == np.isin(values, (0, 50))).all()
    assert ((found < 0) == (values < 0)).all()
    whole = released(schema(kind="integer", heaps=[0, 100]), np.tile([0, 100, 7, -3], 200))["x"].to_numpy()
    assert (whole[0::4] == 0).all()
    assert (whole[1::4] == 100).all()
    assert len(set(whole[2::4].tolist())) > 10


@pytest.mark.parametrize(("step", "text"), [(0.01, 2), (0.5, 1), (1, 0), (5, 0), (0.3, None)])
def test_numbers_are_multiples_of_the_step(step: float, text: int | None) -> None:
    of = schema(bins={"edges": [-10, -9.999, 15.000000000000002, 33.335]}, heaps=[0.005], step=step)
    codes = np.repeat(np.arange(of.cardinalities[0], dtype=np.uint8), 3000)
    table = decode(of, [codes], form=PartFormat(values="values", bins="uniform"), noise=Noise(bytes(32)))
    found = table["x"].to_numpy()
    assert (np.concatenate(ReleaseDecoder.of(of, PartFormat(values="values", bins="uniform")).codes(
        table.to_batches()[0])) == codes).all()  # fmt: skip
    inside = np.isin(codes, [1, 4, 5])  # the others have the heap, or less than a step
    np.testing.assert_allclose(found[inside] / step, np.rint(found[inside] / step), atol=1e-9)
    assert text is None or all(round(x, text) == x for x in found[inside].tolist())
    wide = found[codes == 5] / step
    number = len(np.unique(np.rint(wide)))
    assert number > 0.9 * min(66 / step, 1900)
    assert abs(wide.mean() * step - (33.335 + 100) / 2) < 3


def test_conditions_and_labels_know_heaps() -> None:
    of = schema(heaps=[0], bins={"edges": [-10, 50]})

    def met(text: str) -> list[bool]:
        cells = parse_condition(text, of).cells((0,), of.cardinalities)
        return np.asarray(cells).tolist()

    assert met("x = 0") == [False, True, False, False]
    assert met("x > 0") == [False, False, True, True]
    assert met("x >= 0") == [False, True, True, True]
    assert met("x < 0") == [True, False, False, False]
    assert met("x <= 0") == [True, True, False, False]
    labels = columns(of, PartFormat(values="values", bins="label"))[0].texts
    assert labels == ("-10.0..0.0", "0.0", "0.0..50.0", "50.0..100.0")
    assert code_labels(of.attributes[0]) == ("-10..0", "0", "0..50", "50..100")
    numbers = numbers_in("x", of, ordered=True)
    assert numbers.order.tolist() == [0, 1, 2, 3]
    assert numbers.middles.tolist() == [-5, 0, 25, 75]


@pytest.mark.parametrize("missing", ["refuse", {"category": "none"}])
@pytest.mark.parametrize("values", [["true", "false"], ["false", "true"]])
def test_booleans_are_booleans(values: list[str], missing: Any) -> None:
    given = {"name": "x", "kind": "categorical", "values": values, "labels": ["a", "b"], "missing": missing}
    of = Schema.model_validate({"attributes": [given]})
    nulls = isinstance(missing, dict)
    held = pa.array([True, False, None, True] if nulls else [True, False, False, True])
    form = PartFormat()
    for one in (held, held.cast(pa.string())):
        found = released(of, one)
        assert found["x"].combine_chunks().equals(held)
        codes = ReleaseDecoder.of(of, form).codes(found.to_batches()[0])
        assert decode(of, codes, form=form).equals(found)
    assert columns(of, form)[0].admits(held)
    assert not columns(of, form)[0].admits(held.cast(pa.int64()))
    assert str(to_pandas(found, of, form)["x"].dtype) == ("boolean" if nulls else "bool")
    assert to_pandas(found, of, form, labels=True)["x"][0] == given["labels"][values.index("true")]


def test_days_are_days() -> None:
    values = ["2024-02-28", "2024-02-29", "1969-12-31"]
    given = {"name": "x", "kind": "ordinal", "values": values, "missing": {"category": "none"}}
    of, form = Schema.model_validate({"attributes": [given]}), PartFormat()
    held = pa.array([date(2024, 2, 29), None, date(1969, 12, 31)])
    for one in (held, held.cast(pa.string())):
        found = released(of, one)
        assert found["x"].combine_chunks().equals(held)
        assert ReleaseDecoder.of(of, form).codes(found.to_batches()[0])[0].tolist() == [1, 3, 2]
    assert columns(of, form)[0].admits(held)
    assert not columns(of, form)[0].admits(pa.array([date(2024, 3, 1)]))
    labelled = Schema.model_validate({"attributes": [given | {"labels": ["a", "b", "c"]}]})
    assert to_pandas(found, labelled, form, labels=True)["x"].tolist() == ["b", "none", "c"]
    texts = Schema.model_validate({"attributes": [given | {"values": ["2024-02-30", "2024-02-29"]}]})
    assert columns(texts, form)[0].texts is not None  # one is no day


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"heaps": [101]}, "`heaps` lie within the bounds"),
        ({"heaps": [100]}, "`heaps` lie within the bounds"),
        ({"bins": None, "heaps": [0]}, "`heaps` go with `bins`"),
        ({"bins": None, "step": 0.1}, "`step` with those of a number"),
        ({"kind": "integer", "step": 2}, "`step` with those of a number"),
        ({"kind": "integer", "heaps": [0.5]}, "are integers"),
        ({"step": 0}, "greater than 0"),
        ({"step": 1e-30}, "precision of floats"),
        ({"step": 1000}, "at most the width"),
        ({"kind": "categorical", "values": ["a"], "bounds": None, "bins": None, "step": 1}, "takes `values` only"),
    ],
)
def test_what_does_not_go_together_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        schema(**settings)
