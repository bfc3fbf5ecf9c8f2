"""The evaluation of a release, from Python."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from dpdist.api.containers import as_input, is_partitioned, paths_of
from dpdist.api.given import executor_for, key_of
from dpdist.api.progress import bars
from dpdist.api.specs import specified
from dpdist.errors import SpecError
from dpdist.families.base.attempt import Progress, silent
from dpdist.spec.reader import AnySpecification

if TYPE_CHECKING:
    from distributed import Client

    from dpdist.cluster.cluster import Cluster
    from dpdist.evaluation.report import Options
    from dpdist.evaluation.run import Evaluated


def evaluate(
    release: str | os.PathLike[str],
    against: Any = None,
    *,
    holdout: Any = None,
    spec: AnySpecification | None = None,
    output: str | os.PathLike[str] | None = None,
    confidential: bool = False,
    client: Client | None = None,
    progress: bool | Progress = False,
    public_key: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Evaluated:
    """Compare a release with the real table: ``dpdist evaluate``. The page and the figures are CONFIDENTIAL.

    Parameters
    ----------
    release : str, path or Release
    against : table, optional
        The real table, as for `release`; by default the files that `spec` names.
    holdout : table, optional
        Records like its own that the release was not made from; attacks need them.
    spec : path, mapping or ReleaseSpec, optional
        How the files of the real table are read.
    output : path, optional
        Folder of the page, default: ``evaluation-NAME``; or an ``s3://`` prefix, if it is confidential.
    confidential : bool
        Only those may read the bucket of the output who may read the real table.
    client : distributed.Client, optional
        A live one, which stays open.
    public_key : Ed25519PublicKey or path of a PEM file, optional
    options : dict
        Of `dpdist.evaluation.report.Options`: ``target``, ``train``, ``test``, ``seed``, ``attacks``.

    Raises
    ------
    DpdistError
        A table cannot be read, or does not fit the schema of the release.
    """
    from dpdist.evaluation.run import Request, run_evaluation

    executor = executor_for(client, dask=is_partitioned(against) or is_partitioned(holdout))
    request = Request(
        release=os.fspath(release),
        against=_table(against, executor),
        holdout=_table(holdout, executor),
        spec=None if spec is None else specified(spec, {}),
        output=None if output is None else os.fspath(output),
        confidential=confidential,
        options=_chosen(options),
        executor=executor,
        public_key=key_of(public_key),
        storage_options=dict(storage_options or {}),
    )
    shown: Any = bars() if progress is True else nullcontext(progress or silent)
    with shown as report:
        return run_evaluation(request, progress=report)


def _chosen(options: Mapping[str, Any]) -> Options:
    from dpdist.evaluation.report import Options

    try:
        return Options(**options)
    except TypeError:
        raise SpecError(f"evaluate: unknown options among {', '.join(options)}") from None


def _table(data: Any, executor: Cluster | None) -> Any:
    """A table of an evaluation."""
    if data is None:
        return ()
    paths = paths_of(data)
    return tuple(paths) if paths is not None else as_input(data, executor=executor, extra_columns="ignore")
