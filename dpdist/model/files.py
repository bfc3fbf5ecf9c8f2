"""The files that a synthesis publishes beside its records, and reading them back.

The format is documented in ``docs/release-format.md``. ``tables.columnar`` holds the cells of the noisy tables,
``model.columnar`` the integers of the fitted model by name, ``model.json`` what they mean and how records are drawn.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa

from dpdist.errors import DataNotFound, SpecError, VerificationFailed
from dpdist.limits import MODEL_ARRAYS, MODEL_VALUES
from dpdist.model.account import Measurements
from dpdist.model.choices import MOST_ROUNDS
from dpdist.model.draw import FORMAT, LARGEST_PART
from dpdist.model.fitted import UNIT, Fitted
from dpdist.model.learn import Learned
from dpdist.privacy.arrays import LARGEST_SCALE
from dpdist.publish.columns import lists, numbers, texts
from dpdist.publish.manifest import Manifest, parsed
from dpdist.publish.part_format import read_file
from dpdist.publish.parts import parquet_bytes, read_parquet
from dpdist.storage.store import Store

_DAMAGED = "copy the release again from its publisher"


@dataclass(frozen=True, eq=False)
class PublishedModel:
    """What a release says of how its records were made."""

    fitted: Fitted
    measurements: Measurements
    key: str  # the public drawing key, 64 hexadecimal digits
    rounds: int  # of balancing


def model_files(learned: Learned, *, key: str, rounds: int) -> dict[str, bytes]:
    """The content of the files by name."""
    tables, arrays = learned.measurements.tables, learned.fitted.arrays()
    sizes = [table.counts.size for table in tables]
    cells = pa.table(
        {
            "table": numbers(np.repeat(np.arange(len(tables), dtype=np.int32), sizes)),
            "cell": numbers(np.concatenate([np.zeros(0, np.int64), *(np.arange(size) for size in sizes)])),
            "noisy": numbers(learned.measurements.counts),
        }
    )
    model = pa.table(
        {
            "name": texts(list(arrays)),
            "type": texts([str(array.dtype) for array in arrays.values()]),
            "shape": lists([np.array(array.shape) for array in arrays.values()]),
            "values": lists([array.ravel() for array in arrays.values()]),
        }
    )
    about = {"format": FORMAT, "drawing": {"key": key, "balance": rounds}, "measured": learned.measurements.to_json()}
    return {
        "model.json": (json.dumps(about, sort_keys=True, indent=1) + "\n").encode(),
        "model.columnar": parquet_bytes(model),
        "tables.columnar": parquet_bytes(cells),
    }


def read_model(store: Store, manifest: Manifest) -> PublishedModel:
    """The published model of a release. Raises DataNotFound: none; VerificationFailed: not as the manifest says."""
    listed = {record.name.rsplit("/", 1)[-1]: record for record in manifest.files}
    if not {"model.json", "model.columnar", "tables.columnar"} <= listed.keys():
        raise DataNotFound(
            f"{store.uri} publishes no model: only a release of kind synthesis with output.measurements does"
        )
    try:
        about = parsed(read_file(store, listed["model.json"]))
        if about["format"] != FORMAT:
            raise VerificationFailed(
                f"model.json has format {about['format']}, and this dpdist draws by format {FORMAT}: use the version "
                "that made the release"
            )
        noisy = read_parquet(read_file(store, listed["tables.columnar"]), columns=["noisy"])["noisy"].to_numpy()
        if noisy.dtype != np.int64:
            raise TypeError("noisy counts are integers")
        key, rounds = str(about["drawing"]["key"]), int(about["drawing"]["balance"])
        if len(bytes.fromhex(key)) != 32 or not 0 <= rounds <= MOST_ROUNDS:
            raise ValueError("expected a key of 32 bytes, and rounds")
        fitted = Fitted.from_arrays(_arrays(read_file(store, listed["model.columnar"])))
        measurements = Measurements.of(about["measured"], noisy)
        check_model(fitted, manifest.table.cardinalities)
        check_measurements(measurements, manifest.table.cardinalities)
        return PublishedModel(fitted, measurements, key, rounds)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError, SpecError) as error:
        kind = type(error).__name__
    except (pa.ArrowException, OSError) as error:
        kind = type(error).__name__
    raise VerificationFailed(f"the files of the model are not in their format ({kind}): {_DAMAGED}")


def _arrays(content: bytes) -> Mapping[str, np.ndarray]:
    table = read_parquet(content, ["name", "type"], most=MODEL_ARRAYS)
    if not {"int8", "int16", "int32", "int64"}.issuperset(table["type"].to_pylist()):
        raise TypeError("the arrays of a model are of integers")
    columns = zip(*(table[name].to_pylist() for name in ("name", "type", "shape")), table["values"], strict=True)
    return {
        name: values.values.to_numpy().astype(np.dtype(kind)).reshape(shape) for name, kind, shape, values in columns
    }


def check_model(fitted: Fitted, domain: Sequence[int]) -> None:
    """Check that a model gives records of attributes with `domain` values. Raises ValueError: it does not."""
    cards, drawn = fitted.cardinalities, set[int]()
    _require(all(card >= 1 for card in cards) and len(fitted.fine) == len(domain))
    for step in fitted.steps:
        _require(_are_places(step.parents, drawn) and step.attribute in range(len(cards)))
        _require(step.attribute not in drawn)
        drawn.add(step.attribute)
        configurations = prod(cards[parent] for parent in step.parents)
        _require_cumulative(step.cumulative, configurations, cards[step.attribute])
    _require(drawn == set(range(len(cards))) and all(a in drawn for a in fitted.fine))
    for i, size in enumerate(domain):
        values, rare = fitted.values[i], fitted.rare[i]
        plain = values[values >= 0]
        _require(values.shape == (cards[fitted.fine[i]],) and rare.ndim == 1)
        _require(len(values) - len(plain) == (len(rare) > 0))
        _require(np.array_equal(np.sort(np.concatenate([plain, rare])), np.arange(size)))
        if len(rare):
            _require_cumulative(fitted.rare_cumulative[i], 1, len(rare))
    pairs = sum(a * b for a, b in combinations(domain, 2))
    expected = fitted.expected
    _require(expected.shape in ((0,), (pairs,)) and bool(((expected >= 0) & (expected <= UNIT)).all()))
    _check_pool(fitted, domain)


def _check_pool(fitted: Fitted, domain: Sequence[int]) -> None:
    """Check the weighted pool, where there is one."""
    if fitted.adjustment is None:
        return
    _require(fitted.pool_parts >= 1 and 1 <= fitted.pool_rows <= LARGEST_PART)
    rows = fitted.pool_parts * fitted.pool_rows
    _require(rows * len(domain) <= MODEL_VALUES)
    for column, size in zip(fitted.public, domain if fitted.public else (), strict=True):
        _require(column.shape == (rows,) and int(column.max()) < size)
    groups = fitted.adjustment.groups
    for group, size in zip(groups, domain if groups else (), strict=True):
        _require(group.shape == (size,) and 0 <= int(group.min()) <= int(group.max()) < size)
    domain = [*domain, *(int(group.max()) + 1 for group in groups)]
    for block, logs in zip(fitted.adjustment.blocks, fitted.adjustment.logs, strict=True):
        _require(_are_places(block, range(len(domain))) and logs.shape == (prod(domain[i] for i in block),))


def check_measurements(measured: Measurements, domain: Sequence[int]) -> None:
    """Check that noisy tables are over attributes with `domain` values. Raises ValueError: they are not."""
    source, maps = measured.source, measured.maps
    _require(len(source) == len(maps) and all(_is_place(i, range(len(domain))) for i in source))
    sizes = []
    for i, codes in zip(source, maps, strict=True):
        _require(codes.shape == (domain[i],) and int(codes.min()) >= 0)
        sizes.append(int(codes.max()) + 1)
    for table in measured.tables:
        shape = sizes if table.coded else list(domain)
        _require(isinstance(table.step, str) and _are_places(table.attributes, range(len(shape))))
        _require(len(table.shape) == len(table.attributes) or table.attributes == ())
        _require(all(size >= shape[i] for i, size in zip(table.attributes, table.shape, strict=False)))
        _require(table.coded or all(size == shape[i] for i, size in zip(table.attributes, table.shape, strict=False)))
        _require(1 / LARGEST_SCALE <= table.deviation <= LARGEST_SCALE)  # others may overflow where they are weighed


def _require_cumulative(cumulative: np.ndarray, rows: int, values: int) -> None:
    """Require rows of cumulative probabilities."""
    _require(cumulative.shape == (rows, values))
    _require(bool((np.diff(cumulative, axis=1, prepend=0) >= 0).all()) and bool((cumulative[:, -1] == UNIT).all()))


def _is_place(value: Any, among: Collection[int]) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value in among


def _are_places(values: Sequence[Any], among: Collection[int]) -> bool:
    return all(_is_place(value, among) for value in values) and len(set(values)) == len(values)


def _require(true: bool) -> None:
    if not true:
        raise ValueError("the model does not fit itself or the schema")
