"""An attempt without a ledger, for tests of stages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpdist.cluster.executor import Executor, InProcess
from dpdist.data.inputs import table_source
from dpdist.data.records import Opened
from dpdist.data.table import open_table
from dpdist.families.base.attempt import Attempt, silent
from dpdist.families.base.registry import family_of, make_plan
from dpdist.ledger.keys import KeyRef
from dpdist.spec.release import ReleaseSpec
from dpdist.storage.store import Store

KEY = "00112233445566778899aabbccddeeff" * 2


def attempt_of(
    spec: ReleaseSpec,
    folder: Path,
    *,
    executor: Executor | None = None,
    table: Opened | None = None,
    partitions: int | None = 3,
    key: str = KEY,
    before_noise: Callable[[], None] = lambda: None,
) -> Attempt[Any, Any]:
    """An attempt at a release of a spec's table (or of `table`), with its folders ``work`` and ``out`` in `folder`."""
    folder.mkdir(exist_ok=True)
    return Attempt(
        spec=spec,
        plan=make_plan(spec),
        table=open_table(table_source(spec), spec.table, partitions=partitions) if table is None else table,
        executor=executor or InProcess(),
        key=KeyRef.fixed(key),
        id="0123456789abcdef",
        work=Store(str(folder / "work")),
        output=Store(str(folder / "out")),
        progress=silent,
        before_noise=before_noise,
    )


def run_stages(attempt: Attempt[Any, Any], *, until: str | None = None) -> Attempt[Any, Any]:
    """Run the stages of an attempt, or those before the one named `until`; returns the attempt."""
    for stage in family_of(attempt.spec).stages(attempt.plan):
        if stage.name == until:
            break
        attempt.run(stage)
    return attempt
