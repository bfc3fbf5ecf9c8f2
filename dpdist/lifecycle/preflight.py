"""Before a charge: the plan is what the spec asks for, its paths do not overlap, and an executor is opened."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dpdist.cluster.executor import InProcess
from dpdist.data.records import Opened
from dpdist.data.source import TableSource, beginnings, would_find
from dpdist.errors import GuaranteeRefused, SpecError
from dpdist.ledger import Books
from dpdist.lifecycle.history import RUN_RECORD
from dpdist.limits import JSON_VALUES, MANIFEST_BYTES
from dpdist.publish.manifest import is_readable
from dpdist.publish.statement import require_few
from dpdist.storage.store import Store

if TYPE_CHECKING:
    from dpdist.cluster.executor import Executor
    from dpdist.families.base.plan import Plan
    from dpdist.spec.release import ReleaseSpec

LARGEST_EPSILON = 27
"""Largest epsilon of a release: up to it the error of a draw is below `dpdist.privacy.noise.SAMPLER_DELTA`."""


def refuse(plan: Plan) -> None:
    """Refuse a plan whose guarantee the spec did not ask for, or whose release no reader would open. Raises
    GuaranteeRefused; AccountingError: too many events; SpecError: the schema is too large.
    """
    require_few(plan.event)
    if not is_readable(plan.released.model_dump_json(exclude_defaults=True).encode(), share=1 / 2):
        raise SpecError(
            f"schema: it has more than {JSON_VALUES // 2:,} values, or more than {MANIFEST_BYTES >> 21} MiB of them: "
            "no reader would open its manifest; declare fewer values, or bins"
        )
    if plan.refusal is not None:
        raise GuaranteeRefused(plan.refusal)
    exact = plan.kind in ("pml", "lid") and math.isinf(plan.epsilon)  # asked for by name; the ledger has the last word
    if not plan.epsilon <= LARGEST_EPSILON and not exact:
        raise GuaranteeRefused(
            f"the release would cost epsilon {plan.epsilon:.6g}; above {LARGEST_EPSILON} the error of the samplers is "
            "not negligible, and a guarantee means nothing: spend less"
        )
    limit = plan.spec.privacy.limit
    if limit is not None and not plan.epsilon <= limit:
        raise GuaranteeRefused(
            f"the release costs {plan.charged}, above privacy.limit={limit:g}: spend less, or raise the limit"
        )


def keep_apart(source: TableSource | None, output: Store, work: Store, ledger: Books) -> None:
    """Refuse private files inside the output, an output inside the work folder, and a table that covers either. Raises
    SpecError.
    """
    if output.contains(work.uri) or work.contains(output.uri):
        raise SpecError(
            "output.path and work must not contain each other: the work folder is confidential, the output is published"
        )
    private = [("data.path", place) for place in (beginnings(source) if source is not None else ())]
    private += [("ledger", str(ledger.database.file))] if ledger.database.file else []
    for setting, place in private:
        if output.contains(place):
            raise SpecError(f"{setting} lies inside output.path, which is published: choose another output.path")
    for setting, store, name in (
        ("output.path", output, "data/0/part-00000.parquet"),
        ("work", work, f"0/{RUN_RECORD}"),
    ):
        if source is not None and would_find(source, f"{store.uri}/{name}"):
            raise SpecError(
                f"data.path covers {setting}: what a release writes there would become part of the table; choose "
                "another place for it, or name the files of the table more closely"
            )


IN_PROCESS_CELLS = 1 << 22
"""Values up to which plain NumPy reads and counts a table faster than a scheduler starts."""

THREADS_CELLS = 1 << 29
"""Values up to which the threads of this process are faster than worker processes, which take seconds to start."""


def executor_mode(spec: ReleaseSpec, table: Opened) -> str:
    """The mode that a spec names, or else the one for the size of the table, which changes no bit of the release."""
    if spec.cluster.mode != "auto":
        return spec.cluster.mode
    if spec.worker_resources:  # clients of a federated release, each with a worker of its own
        return "embedded"
    if table.cells <= IN_PROCESS_CELLS:
        return "in-process"
    return "threads" if table.cells <= THREADS_CELLS else "embedded"


@contextmanager
def opened_executor(spec: ReleaseSpec, table: Opened) -> Iterator[Executor]:
    """The executor of a release while the context lasts; Dask is imported where one needs it."""
    mode, cluster = executor_mode(spec, table), spec.cluster
    if mode == "in-process":
        yield InProcess()
        return
    from dpdist.cluster.opening import open_cluster

    with open_cluster(cluster, mode=mode, resources=spec.worker_resources) as executor:
        yield executor
