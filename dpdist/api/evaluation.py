"""Evaluations from Python."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from dpdist.api.display import shown
from dpdist.api.given import as_input, executor_for, is_partitioned, paths_of, specified
from dpdist.api.ledger import Ledger
from dpdist.errors import SpecError
from dpdist.spec.reader import AnySpecification

if TYPE_CHECKING:
    from distributed import Client

    from dpdist.evaluation.run import Evaluated
    from dpdist.families.base.attempt import Progress

P = ParamSpec("P")
R = TypeVar("R")

_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z-]*)(?: (?=[A-Z]+\b)())?")


def _in_parameters(evaluate: Callable[P, R]) -> Callable[P, R]:
    """A function whose errors have parameters in the place of the options of the command line."""

    @wraps(evaluate)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return evaluate(*args, **kwargs)
        except SpecError as error:
            told = _OPTION.sub(lambda found: found[1].replace("-", "_") + "=" * (found[2] is not None), str(error))
            raise SpecError(told) from None

    return called


@_in_parameters
def evaluate(
    release: str | os.PathLike[str],
    against: Any = None,
    *,
    holdout: Any = None,
    spec: AnySpecification | None = None,
    client: Client | None = None,
    progress: bool | Progress = False,
    storage_options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Evaluated:
    """Compare a release with the real table: ``dpdist evaluate``. The page and the figures are CONFIDENTIAL.

    Parameters
    ----------
    release : str, path or Release
        Or a YAML file of a `dpdist.evaluation.request.Request`; what else is given takes the place of what it says.
    against : table, optional
        The real table, as for `release`; by default the files that `spec` names.
    holdout : table, optional
        Records like its own that the release was not made from; attacks need them.
    spec : path, mapping or ReleaseSpec, optional
        How the files of the real table are read.
    client : distributed.Client, optional
        A live one, which stays open.
    progress : bool or callable
        Show bars, or call ``progress(stage, done, total)``.
    storage_options : mapping, optional
        Of object storage.
    settings
        The other fields of `dpdist.evaluation.request.Request`, which are the options of the command: ``output``,
        ``confidential``, ``target``, ``train``, ``test``, ``seed``, ``attacks``, ``parents``, ``holdout_parents``,
        ``cluster``, ``public_key``, ``publish``, ``ledger``.

    Raises
    ------
    DpdistError
        A table cannot be read, or does not fit the schema of the release.
    """
    from dpdist.evaluation.request import Request
    from dpdist.evaluation.run import run_evaluation

    executor = executor_for(client, dask=is_partitioned(against) or is_partitioned(holdout))
    tables = {"against": against, "holdout": holdout}
    given = settings | {
        name: paths_of(data) or as_input(data, executor=executor, extra_columns="ignore", wanted=())
        for name, data in tables.items()
        if data is not None
    }
    if spec is not None:
        given["spec"] = specified(spec, {})
    if isinstance(given.get("ledger"), Ledger):
        given["ledger"] = given["ledger"].url
    more: dict[str, Any] = {"executor": executor, "storage_options": dict(storage_options or {})}
    if (where := os.fspath(release)).endswith((".yaml", ".yml")):
        request = Request.read(Path(where), given, **more)
    else:
        request = Request.of({"release": where, **given}, **more)
    with shown(progress) as report:
        return run_evaluation(request, progress=report)
