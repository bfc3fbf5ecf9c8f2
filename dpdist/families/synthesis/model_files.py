"""The files that a synthesis publishes beside its records, and reading them back.

The format is documented in ``docs/release-format.md``. ``tables.parquet`` holds the cells of the noisy tables,
``model.parquet`` the integers of the fitted model by name, ``model.json`` what they mean and how records are drawn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dpdist.errors import DataNotFound, SpecError, VerificationFailed
from dpdist.families.synthesis.draw import FORMAT
from dpdist.families.synthesis.fitted import Fitted
from dpdist.families.synthesis.learn import Learned
from dpdist.families.synthesis.measurements import Measurements
from dpdist.families.synthesis.model_check import check_measurements, check_model
from dpdist.families.synthesis.spec import MOST_ROUNDS
from dpdist.limits import MODEL_ARRAYS
from dpdist.publish.arrow_arrays import lists, numbers, texts
from dpdist.publish.extra import read_file
from dpdist.publish.manifest import Manifest, parsed
from dpdist.publish.parts import parquet_bytes, read_parquet
from dpdist.storage.store import Store

_DAMAGED = "copy the release again from its publisher"


@dataclass(frozen=True, eq=False)
class PublishedModel:
    """What a release says of how its records were made.

    Attributes
    ----------
    fitted : Fitted
    measurements : Measurements
    key : str
        The public drawing key, 64 hexadecimal digits.
    rounds : int
        Of balancing.
    """

    fitted: Fitted
    measurements: Measurements
    key: str
    rounds: int


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
    about = {
        "format": FORMAT,
        "drawing": {"key": key, "balance": rounds},
        "measured": learned.measurements.to_json(),
    }
    return {
        "model.json": (json.dumps(about, sort_keys=True, indent=1) + "\n").encode(),
        "model.parquet": parquet_bytes(model),
        "tables.parquet": parquet_bytes(cells),
    }


def read_model(store: Store, manifest: Manifest) -> PublishedModel:
    """The published model of a release.

    Raises
    ------
    DataNotFound
        The release publishes none.
    VerificationFailed
        A file is not what the manifest says, or not in this format.
    StorageUnavailable
        The storage does not answer.
    """
    listed = {record.name.rsplit("/", 1)[-1]: record for record in manifest.files}
    if not {"model.json", "model.parquet", "tables.parquet"} <= listed.keys():
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
        noisy = read_parquet(read_file(store, listed["tables.parquet"]), columns=["noisy"])["noisy"].to_numpy()
        if noisy.dtype != np.int64:
            raise TypeError("noisy counts are integers")
        key, rounds = str(about["drawing"]["key"]), int(about["drawing"]["balance"])
        if len(bytes.fromhex(key)) != 32 or not 0 <= rounds <= MOST_ROUNDS:
            raise ValueError("expected a key of 32 bytes, and rounds")
        fitted = Fitted.from_arrays(_arrays(read_file(store, listed["model.parquet"])))
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
