"""A federated release as a Prefect flow: the steps of a release, and who took part.

It is `flows.release` for specs with clients: the same tasks and the same rules for what Prefect may hold. The flow runs
on the coordinator. The clients' workers find their own ledgers, keys and files.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from prefect import flow
from prefect.artifacts import create_table_artifact

from dpdist.errors import SpecError

from .release import one_at_a_time, read_spec, run_with_retries, without_private_text
from .server import artifact_key, described, storage_of_block, told


@flow(
    name="federated",
    description="Release the records of several clients: only noisy sums leave them.",
    persist_result=False,
    validate_parameters=True,
)
@described
def federated(
    spec: str | dict[str, Any], settings: dict[str, Any] | None = None, attempt: Literal["once", "replace"] = "once"
) -> str:
    """Run a federated release, or continue the one that was interrupted.

    Parameters
    ----------
    spec : str or dict
        Path of a spec file in the folder of specs, or a whole spec with its schema.
    settings : dict, optional
        Values that replace those of the spec, by dotted path.
    attempt : {"once", "replace"}
        Begin, continue what was interrupted, or end if it is published; or give an interrupted attempt up.

    Returns
    -------
    str
        Address of the release.
    """

    @storage_of_block()
    def run() -> str:
        loaded = read_spec(spec, settings or {})
        clients = getattr(loaded, "federated", None)
        if clients is None:
            raise SpecError("the spec has no clients (section `federated`): use the flow `release`")
        # what the workers of the clients must offer, and which data set of each is charged
        rows = [{"client": c.name, "resource": c.resource_name, "data set": c.dataset} for c in clients.clients]
        key = partial(artifact_key, loaded.dataset, loaded.name)
        create_table_artifact(table=rows, key=key("clients"), description="Clients")
        with told(loaded), one_at_a_time(loaded.dataset):
            outcome = run_with_retries(loaded, attempt)
        rows = [
            {"class": part["value"], "clients": part["clients"], "records in a mixture": part["records_in_a_mixture"]}
            for part in outcome.parameters.get("mixed", ())
        ]
        took_part = f"{outcome.parameters['clients']} clients took part"
        create_table_artifact(table=rows, key=key("round"), description=took_part)
        return outcome.uri

    return without_private_text(run)
