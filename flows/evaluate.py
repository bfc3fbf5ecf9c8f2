"""An evaluation as a Prefect flow: one task, whose results Prefect never sees.

The page and the figures are confidential. They go to a folder on the worker's machine or to a bucket that the worker
calls confidential (``DPDIST_PAGES``), and Prefect learns only their address. Figures that were charged may be published
once the ledger has committed them; they, too, stay in their file.

Whoever starts a run chooses the release, whose schema is that of whoever made it, and the table. So what a table is
refused for stands on the page, too: an evaluation that is free would else answer any question about it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact

from dpdist.errors import SpecError

from .release import as_task, pinned, read_spec, without_private_text
from .server import artifact_key, described, name_run, page_address, storage_of_block

OPTIONS = ("target", "train", "test", "seed", "attacks", "publish", "parents", "holdout_parents")
"""What the starter of a run can choose in addition to the tables; the worker says where page and ledger are."""


@flow(
    name="evaluate",
    description="Compare a release with the real table: a confidential page that Prefect does not see.",
    persist_result=False,
    validate_parameters=True,
)
@described
def evaluate(
    release: str,
    output: str,
    against: list[str] | None = None,
    holdout: list[str] | None = None,
    spec: str | dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
) -> str:
    """Evaluate a release.

    Parameters
    ----------
    release : str
        Folder or ``s3://`` prefix.
    output : str
        Folder of the page, below the place for pages that the worker names; confidential.
    against, holdout : list of str, optional
        Files of the real table and of a hold-out.
    spec : str or dict, optional
        Path of the release's spec below the folder of specs, or the whole spec: how the table is read.
    settings : dict, optional
        Values that replace those of the spec, by dotted path.
    options : dict, optional
        `OPTIONS` of `dpdist.evaluation.request.Request`, such as ``{"target": "income", "attacks": false}``. What
        ``publish`` costs is charged to the ledger of the spec or of ``DPDIST_LEDGER``.

    Returns
    -------
    str
        Address of the page.
    """
    from dpdist.evaluation.request import Request

    @storage_of_block()
    def run() -> str:
        loaded = read_spec(spec, settings or {}) if spec is not None else None
        asked = options or {}
        if others := sorted(asked.keys() - set(OPTIONS)):
            raise SpecError(f"options: expected some of {', '.join(OPTIONS)}, not {', '.join(others)}")
        request = Request.of(
            {"release": release, "against": tuple(against or ()), "holdout": tuple(holdout or ()), **asked},
            spec=loaded,
            output=page_address(output),
            confidential=True,  # the worker names the place
            ledger=loaded.ledger if loaded is not None else pinned().get("ledger"),
        )
        name_run(f"evaluate/{Path(release.rstrip('/')).name}", "evaluation")
        return run_task(request)

    return without_private_text(run)


def run_task(request: Any) -> str:
    """The evaluation as a task without parameters and without a result. Which of its stages it comes to depends on the
    table, so its progress is that it has begun and ended.
    """
    from dpdist.evaluation.run import page_of_evaluation

    pages: list[str] = []

    def step() -> None:
        pages.append(page_of_evaluation(request))

    name = Path(request.release.rstrip("/")).name
    as_task("evaluate", step, key=artifact_key("evaluation", name), reporter=[])(None)
    get_run_logger().info("the page is at %s: confidential", pages[-1])
    create_markdown_artifact(
        markdown=f"# Evaluation of {name}\n\nThe page is at `{pages[-1]}`: confidential.\n",
        key=artifact_key("evaluation", name, "page"),
        description="Where the page is",
    )
    return pages[-1]
