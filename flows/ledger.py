"""The page of a ledger as a Prefect flow, for a schedule: what was spent, and events where somebody should look.

It reads the ledger alone: no record, no release and no key.
"""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta

from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact

from dpdist.errors import LedgerError
from dpdist.spec.release import DEFAULT_LEDGER

from .release import pinned, without_private_text
from .server import described, name_run, page_address, storage_of_block, tell_state


@flow(
    name="ledger",
    description="Write the page of the ledger, and tell of budgets that are nearly spent and attempts left open.",
    persist_result=False,
    validate_parameters=True,
)
@described
def ledger(page: str = "ledger.html", budget_below: float = 0.2, open_hours: float = 24.0) -> str:
    """Write the page of the ledger that the worker names (``DPDIST_LEDGER``).

    Parameters
    ----------
    page : str
        File of the page, below the folder of pages of the worker.
    budget_below : float
        An event is sent for each data set with less than this share left.
    open_hours : float
        An event is sent for each attempt that is open for longer.

    Returns
    -------
    str
        Address of the page.
    """
    return without_private_text(lambda: _write(page, budget_below, timedelta(hours=open_hours)))


def _write(page: str, budget_below: float, open_for: timedelta) -> str:
    from dpdist.evaluation.ledger_report import ledger_page
    from dpdist.evaluation.page.files import pages_at
    from dpdist.ledger import Books
    from dpdist.ledger.statement import ledger_rows

    name_run("ledger")
    place = page_address(page)
    with storage_of_block():
        with closing(Books.open(pinned().get("ledger", DEFAULT_LEDGER), create=False)) as opened:
            rows, name = ledger_rows(opened), opened.database.name
        text = ledger_page(rows, ledger=name, at=datetime.now(UTC).isoformat())
        folder, _, file = place.rpartition("/")
        address = pages_at(folder).write(file, text.encode(), advice="choose another page")
    tell_state(rows, budget_below=budget_below, open_for=open_for)
    create_markdown_artifact(
        markdown=f"# Ledger\n\nThe page is at `{address}`.\n", key="ledger-page", description="Where the page is"
    )
    get_run_logger().info("the page is at %s", address)
    if damaged := [row["error"] for row in rows if "error" in row]:
        raise LedgerError("\n".join(damaged))
    return address
