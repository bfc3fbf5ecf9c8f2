"""The functions of the public API: plan, release, open_release, verify."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dpdist.api.display import PlannedRelease, shown
from dpdist.api.given import (
    as_input,
    column_names,
    executor_for,
    is_partitioned,
    key_of,
    named_arguments,
    paths_of,
    specified,
)
from dpdist.api.ledger import Ledger, url_of
from dpdist.errors import printable
from dpdist.spec.reader import AnySpecification

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distributed import Client

    from dpdist.api.released import Release
    from dpdist.cluster.cluster import Cluster
    from dpdist.data.inputs import Input
    from dpdist.families.base.attempt import Progress
    from dpdist.inference.series import Series
    from dpdist.lifecycle.run import AttemptMode, Run
    from dpdist.publish.verify import VerifyReport
    from dpdist.spec.release import ReleaseSpec

AnyLedger = Ledger | str | None

IN_MEMORY = "given as a table"
"""What stands for `data.path` in the spec of a release whose table is no file."""


@named_arguments
def plan(
    spec: AnySpecification, *, data: Any = None, ledger: AnyLedger = None, settings: Mapping[str, Any] | None = None
) -> PlannedRelease:
    """Say what a release would guarantee, cost and need: ``dpdist plan``. Reads no record.

    Parameters
    ----------
    spec : path, mapping or ReleaseSpec
        What is released: a YAML file, or the same keys in a mapping.
    data : table, optional
        The table that would be released; only the names of its columns are looked at.
    ledger : Ledger or URL, optional
        By default the one that ``DPDIST_LEDGER`` or the spec names.
    settings : mapping, optional
        Values that replace those of the spec, by dotted path: ``{"synthesis.records": 1000}``.

    Raises
    ------
    SpecError
        The spec is not valid, or the settings contradict each other.
    ColumnMismatch
        The columns of `data` are not those of the schema.
    AccountingError, GuaranteeRefused
        There is no valid guarantee, or none that the spec asks for.
    """
    from dpdist.families.base.registry import make_plan

    loaded = _loaded(spec, data, ledger, settings)
    names = column_names(data) if data is not None and paths_of(data) is None else None
    if names is not None:
        from dpdist.data.files import check_columns

        check_columns("data", names, loaded.table, extra=loaded.data.extra_columns)
    plan = make_plan(loaded)
    plan.rehearse_hooks()
    return PlannedRelease(plan)


@named_arguments
def release(
    spec: AnySpecification,
    *,
    data: Any = None,
    ledger: AnyLedger = None,
    client: Client | None = None,
    progress: bool | Progress = False,
    attempt: AttemptMode = "new",
    settings: Mapping[str, Any] | None = None,
    test_key: str | None = None,
) -> Release:
    """Run a release: charge, compute, publish: ``dpdist release``.

    Parameters
    ----------
    spec : path, mapping or ReleaseSpec
        What is released: a YAML file, or the same keys in a mapping.
    data : table, optional
        Paths, a pandas, Polars or Dask DataFrame, a pyarrow table or dataset, what streams Arrow batches (a DuckDB
        relation, an ADBC cursor), a Delta or Iceberg table; by default the files that the spec names.
    ledger : Ledger or URL, optional
        By default the one that ``DPDIST_LEDGER`` or the spec names.
    client : distributed.Client, optional
        A live client of any Dask cluster, which stays open; by default what the spec names: this process for small
        tables.
    progress : bool or callable
        Show bars, or call ``progress(stage, done, total)``.
    attempt : {"new", "resume", "once", "replace"}
        Begin; or continue the attempt that was interrupted, which costs nothing more; or whichever is needed, and
        return what is published: safe to repeat; or give an interrupted attempt up, whose charge stays, and charge a
        new one.
    settings : mapping, optional
        Values that replace those of the spec, by dotted path.
    test_key : str, optional
        64 hexadecimal digits, for tests only: NOT PRIVATE.

    Raises
    ------
    DpdistError
        See `dpdist.errors`. Nothing is published, and unless the message says otherwise nothing was charged or the
        attempt can be resumed.
    """
    options: dict[str, Any] = {"attempt": attempt, "test_key": test_key}
    with opened_run(
        spec, data=data, ledger=ledger, client=client, progress=progress, settings=settings, **options
    ) as run:
        outcome = run.finish()
    from dpdist.api.released import Release

    return Release(outcome.uri, storage_options=run.spec.output.storage.options, outcome=outcome)


@contextmanager
def opened_run(
    spec: AnySpecification,
    *,
    data: Any = None,
    ledger: AnyLedger = None,
    client: Client | None = None,
    progress: bool | Progress = False,
    settings: Mapping[str, Any] | None = None,
    test_key: str | None = None,
    **options: Any,
) -> Iterator[Run]:
    """A run of a release, opened; parameters as for `release`."""
    from dpdist.lifecycle.run import Run

    loaded = _loaded(spec, data, ledger, settings)
    executor, given = _given(data, client, loaded)
    if progress is True:
        options = {"announce": lambda text: print(printable(text), file=sys.stderr), **options}
    with (
        shown(progress) as report,
        Run(loaded, fixed_key=test_key, progress=report, input=given, executor=executor, **options) as run,
    ):
        yield run


@named_arguments
def open_release(
    path: str | os.PathLike[str], *, public_key: Any = None, storage_options: Mapping[str, Any] | None = None
) -> Release:
    """Verify a release, and open it.

    Parameters
    ----------
    path : str or path
        Folder or ``s3://`` prefix.
    public_key : Ed25519PublicKey or path of a PEM file, optional
        The signature is then required.
    storage_options : mapping, optional
        Of object storage.

    Raises
    ------
    VerificationFailed
        A file is not what the manifest or the signature says; the message names the file.
    DataNotFound
        There is no release.
    """
    from dpdist.publish.verify import verify as check

    key = key_of(public_key)
    check(path, key, storage_options=storage_options)
    from dpdist.api.released import Release

    return Release(path, public_key=key, storage_options=storage_options)


@named_arguments
def open_series(
    path: str | os.PathLike[str], *, public_key: Any = None, storage_options: Mapping[str, Any] | None = None
) -> Series:
    """Open the releases of several periods, for questions over time.

    Parameters
    ----------
    path : str or path
        A folder of releases, or a pattern such as ``releases/2026-??``; in the order of their names.
    public_key : Ed25519PublicKey or path of a PEM file, optional
        The signatures are then required.
    storage_options : mapping, optional
        Of object storage.

    Raises
    ------
    VerificationFailed
        A file is not what a manifest or a signature says; the message names the file.
    DataNotFound
        There are fewer than two releases.
    """
    from dpdist.inference.series import Series

    return Series.open(path, key_of(public_key), storage_options=storage_options)


@named_arguments
def verify(
    path: str | os.PathLike[str] | Release,
    *,
    public_key: Any = None,
    ledger: AnyLedger = None,
    name: str | None = None,
    attempt: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> VerifyReport:
    """Check every file of a release against its manifest, the guarantee against its events, and the signature.

    Parameters
    ----------
    path : str, path or Release
    public_key : Ed25519PublicKey or path of a PEM file, optional
        The signature is then required.
    ledger : Ledger or URL, optional
        Also compare the release with the account of its data set.
    name, attempt : str, optional
        The release that is expected; of the attempt at least 8 characters.
    storage_options : mapping, optional
        Of object storage.

    Raises
    ------
    VerificationFailed
        It is another release, or something is not what the manifest, the signature or the ledger says.
    """
    from dpdist.publish.account import verify_with_account
    from dpdist.publish.verify import verify as check

    url, key = url_of(ledger), key_of(public_key)
    expected: dict[str, Any] = {"name": name, "attempt": attempt, "storage_options": storage_options}
    if url is None:
        return check(os.fspath(path), key, **expected)
    with Ledger(url).opened() as opened:
        return verify_with_account(opened, os.fspath(path), key, **expected)


def _loaded(spec: AnySpecification, data: Any, ledger: AnyLedger, settings: Mapping[str, Any] | None) -> ReleaseSpec:
    """The spec of a call."""
    overrides = dict(settings or {})
    if data is not None:
        overrides["data.path"] = paths_of(data) or IN_MEMORY
    url = url_of(ledger)
    if url is not None:
        overrides["ledger"] = url
    return specified(spec, overrides)


def _given(data: Any, client: Client | None, spec: ReleaseSpec) -> tuple[Cluster | None, Input | None]:
    """The executor and the input of a call, where they are not those of the spec."""
    executor = executor_for(client, dask=is_partitioned(data))
    if data is None or paths_of(data) is not None:
        return executor, None
    from dpdist.data.files import wanted_columns

    extra = spec.data.extra_columns
    wanted = wanted_columns(spec.table, spec.column_beside) if extra == "ignore" else None
    return executor, as_input(data, executor=executor, extra_columns=extra, wanted=wanted)
