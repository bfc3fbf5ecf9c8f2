"""What the caller of the Python API gives: a spec, a client, a key, and tables of other packages.

Tables are recognised by their methods, so that this module imports none of the packages.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from dpdist.errors import ColumnMismatch, SpecError, meant
from dpdist.spec.reader import AnySpecification, load
from dpdist.spec.release import ReleaseSpec

if TYPE_CHECKING:
    import pyarrow as pa
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from distributed import Client

    from dpdist.cluster.cluster import Cluster
    from dpdist.cluster.executor import Executor
    from dpdist.data.inputs import Input
    from dpdist.data.source import ExtraColumns

P = ParamSpec("P")
R = TypeVar("R")

EXPECTED = (
    "a path, a pandas, Polars or Dask DataFrame, a pyarrow table or dataset, a DuckDB relation, an ADBC cursor, "
    "a Delta or an Iceberg table"
)


def named_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """A function whose TypeError for an argument that it does not have says which one may be meant."""
    names = [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]
    title = function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in names:
                raise TypeError(f"{title}() has no argument {name!r}{meant(name, names)}")
        return function(*args, **kwargs)

    return called


def paths_of(data: object) -> list[str] | None:
    """The paths that a table is given by; None where it is no path."""
    if isinstance(data, str | os.PathLike):
        return [os.fspath(data)]
    if isinstance(data, list | tuple) and data and all(isinstance(path, str | os.PathLike) for path in data):
        return [os.fspath(path) for path in data]
    return None


def is_partitioned(data: object) -> bool:
    """Whether it is a Dask DataFrame."""
    return _has(data, "to_delayed") and _has(data, "npartitions")


def as_input(
    data: Any, *, executor: Executor | None, extra_columns: ExtraColumns = "refuse", wanted: Sequence[str] | None = None
) -> Input:
    """A table that is no path (see `EXPECTED`) as an input of a release or an evaluation; `wanted` as for `to_arrow`.

    The partitions of a Dask DataFrame are computed by `executor`. Raises SpecError: it is not one of these;
    ColumnMismatch: a column holds values of several types.
    """
    from dpdist.data.arrow import PartitionedTable, TableInMemory

    what = f"the {_name(data)}"
    if is_partitioned(data):
        if executor is None:
            raise SpecError("data: a Dask DataFrame needs a Dask executor")
        return PartitionedTable(
            data.to_delayed(), partial(to_arrow, what=what, wanted=wanted), executor, what, extra_columns
        )
    return TableInMemory(to_arrow(data, what=what, wanted=wanted), what, extra_columns)


def to_arrow(data: Any, *, what: str, wanted: Sequence[str] | None = None) -> pa.Table:
    """A table of any package as an Arrow table, without copies where that is possible. Where `wanted` are the columns
    of the schema, the others are left out if they repeat a name, or hold what no attribute can.
    """
    from dpdist.data.arrow import is_digestible

    if wanted is not None and _package(data) == "pandas" and _has(data, "columns"):
        names = [str(name) for name in data.columns]
        kept = [name in wanted or _converts(data.iloc[:, k]) for k, name in enumerate(names)]
        data = data.loc[:, [keeps and _once(name, names, wanted) for keeps, name in zip(kept, names, strict=True)]]
    table = _converted(data, what)
    if wanted is not None:
        names, kinds = table.column_names, table.schema.types
        held = [name in wanted or is_digestible(kind) for name, kind in zip(names, kinds, strict=True)]
        table = table.select([k for k, name in enumerate(names) if held[k] and _once(name, names, wanted)])
    return table


def _once(name: str, names: Sequence[str], wanted: Sequence[str]) -> bool:
    return name in wanted or names.count(name) == 1


def _converted(data: Any, what: str) -> pa.Table:
    import pyarrow as pa

    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if _package(data) == "pandas" and _has(data, "columns"):
        return _of_pandas(data, what)
    if _has(data, "__arrow_c_stream__"):
        with suppress(pa.ArrowInvalid):  # a single column
            return pa.RecordBatchReader.from_stream(data).read_all()
    if _has(data, "fetch_record_batch"):  # a cursor of ADBC
        return data.fetch_record_batch().read_all()
    if _has(data, "to_pyarrow_dataset"):  # a Delta table
        data = data.to_pyarrow_dataset()
    if _has(data, "to_table") and _package(data) == "pyarrow":
        return data.to_table()
    if _package(data) == "pyiceberg" and _has(data, "scan"):
        return data.scan().to_arrow()
    raise SpecError(f"data: expected {EXPECTED}; {what} is not one of these")


def column_names(data: Any) -> Sequence[str] | None:
    """The names of the columns, where they are known without reading a record."""
    columns = data.columns if _has(data, "columns") else None
    if columns is not None and _package(data) in ("pandas", "polars", "dask", "duckdb"):
        return [str(name) for name in columns]
    names = getattr(getattr(data, "schema", None), "names", None)
    return [str(name) for name in names] if isinstance(names, list | tuple) else None


def _has(data: object, name: str) -> bool:
    """Whether a class has an attribute: lazy objects, such as a Dask Delayed, answer to every name."""
    return hasattr(type(data), name)


def _package(data: object) -> str:
    return type(data).__module__.lstrip("_").partition(".")[0]


def _name(data: object) -> str:
    return f"{_package(data)} {type(data).__name__}"


def _of_pandas(data: Any, what: str) -> pa.Table:
    """A pandas DataFrame without its index; NaN and None are missing values."""
    import pyarrow as pa

    if not data.columns.is_unique:
        twice = data.columns[data.columns.duplicated()][0]
        raise ColumnMismatch(f"{what}: two columns have the same name, {twice!r}: rename one")
    try:
        return pa.Table.from_pandas(data, preserve_index=False).replace_schema_metadata(None)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):  # their text quotes a value
        mixed = [name for name in data.columns if not _converts(data[name])]
    raise ColumnMismatch(f"{what}: the column {str(mixed[0])!r} holds values of several types: give it one") from None


def _converts(column: Any) -> bool:
    import pyarrow as pa

    try:
        pa.Array.from_pandas(column)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False
    return True


def specified(spec: AnySpecification, settings: Mapping[str, Any]) -> ReleaseSpec:
    """A spec with settings of the call, by dotted path, and the ledger that ``DPDIST_LEDGER`` names.

    Raises SpecError: there is no such file, or it is no valid spec.
    """
    url = os.environ.get("DPDIST_LEDGER")
    if isinstance(spec, ReleaseSpec) and spec.ledger == url:
        url = None  # it was read with it
    return load(spec, ({"ledger": url} if url else {}) | dict(settings), base=Path.cwd())


def executor_for(client: Client | None, *, dask: bool) -> Cluster | None:
    """The executor of the caller's client; for a Dask DataFrame without one, the threads of this process."""
    if client is not None:
        from dpdist.cluster.opening import executor_of

        return executor_of(client)
    if not dask:
        return None
    from dpdist.cluster.cluster import Cluster

    return Cluster()


def key_of(key: Any) -> Ed25519PublicKey | None:
    """A public key, or the one in a PEM file."""
    if isinstance(key, str | os.PathLike):
        from dpdist.ledger.signing import load_public_key

        return load_public_key(Path(key))
    return key  # type: ignore[no-any-return]
