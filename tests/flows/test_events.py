"""Names and tags of runs, edges between steps, and events, from each of which an example automation starts."""

import importlib.util
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from flowruns import inline
from outcomes import states
from releases import project

from dpdist import errors
from dpdist.families.base.attempt import Attempt

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@pytest.fixture(scope="module")
def calls() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The address of a webhook, and what it was told."""
    told: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            told.append(json.loads(body["body"]) if "body" in body else body)
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", told
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def automations(prefect_home: tuple[Path, ...], calls: tuple[str, list[Any]]) -> list[str]:
    """The examples of the repository, loaded into the server."""
    from prefect import get_client
    from prefect.client.schemas.actions import WorkPoolCreate

    from flows.ledger import ledger

    with get_client(sync_client=True) as client:
        if all(pool.name != "automated" for pool in client.read_work_pools()):
            client.create_work_pool(WorkPoolCreate(name="automated", type="process"))
        flow_id = client.create_flow(ledger)
        client.create_deployment(flow_id, name="ledger", work_pool_name="automated")
    path = ROOT / "deploy" / "prefect" / "automations.py"
    spec = importlib.util.spec_from_file_location("automations", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.load(module.FILE, calls[0])
    loaded: list[str] = module.load(module.FILE, calls[0])  # again: they are replaced
    return loaded


def until(found: Callable[[], Any], seconds: float = 300) -> Any:
    """What is found in the end; events take some seconds."""
    deadline = time.monotonic() + seconds
    while not (answer := found()):
        assert time.monotonic() < deadline, "nothing came"
        time.sleep(0.2)
    return answer


def runs(**wanted: Any) -> list[Any]:
    from prefect import get_client

    with get_client(sync_client=True) as client:
        return [
            run for run in client.read_flow_runs() if all(getattr(run, name) == value for name, value in wanted.items())
        ]


@pytest.mark.slow
def test_each_event_starts_its_automation(
    tmp_path: Path, automations: list[str], calls: tuple[str, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect import get_client

    import flows.ledger
    import flows.release

    assert len(automations) == 4
    told = calls[1]
    monkeypatch.setattr(flows.release, "DELAYS", ())
    monkeypatch.setenv("DPDIST_PAGES", str(tmp_path))
    spec = project(tmp_path, name="Seen.1")
    monkeypatch.setenv("DPDIST_LEDGER", spec.ledger)
    del (tree := inline(spec))["ledger"]
    plain = Attempt.stored

    def lost(self: Attempt[Any, Any], kind: Any, make: Any) -> Any:
        if kind.FILE == "network.bin":
            raise errors.ClusterUnreachable("lost")
        return plain(self, kind, make)

    with monkeypatch.context() as patch:
        patch.setattr(Attempt, "stored", lost)
        with pytest.raises(errors.ClusterUnreachable):
            flows.release.release(tree)
    flows.ledger.ledger(open_hours=0)
    flows.release.release(tree)
    with pytest.raises(errors.ReleaseConflict):
        flows.release.release(tree, settings={"synthesis.records": 50})
    page = flows.ledger.ledger(budget_below=1)
    assert "Seen.1" in Path(page).read_text()
    assert states(spec) == ["committed"]

    until(
        lambda: (
            {one["event"] for one in told}
            == {f"dpdist.{n}" for n in ("release.refused", "attempt.left-open", "budget.low")}
        )
    )
    by_event = {event: [one for one in told if one["event"] == event] for event in {one["event"] for one in told}}
    until(
        lambda: len([one for one in told if one["event"] == "dpdist.attempt.left-open"]) == 2
    )  # by its run, by the page
    refused = by_event["dpdist.release.refused"]
    assert [(one["subject"], one["payload"]["error"]) for one in refused] == [("people/Seen.1", "ReleaseConflict")]
    assert {one["subject"] for one in by_event["dpdist.budget.low"]} == {"people"}
    begun = until(lambda: [run for run in runs(name="ledger") + runs() if run.deployment_id is not None])
    assert {run.created_by.type if run.created_by else "" for run in begun} == {"AUTOMATION"}

    (run,) = [run for run in runs(name="people/Seen.1") if run.state.is_completed()]
    assert set(run.tags) >= {"dataset:people", "release:Seen.1", f"kind:{spec.kind}"}
    with get_client(sync_client=True) as client:
        nodes = client.request("GET", "/flow_runs/{id}/graph-v2", path_params={"id": run.id}).json()["nodes"]
    shown = {identity: node for identity, node in nodes if node["kind"] == "task-run"}
    names = {node["id"]: node["label"].rsplit("-", 1)[0] for node in shown.values()}
    edges = {names[node["id"]]: [names[parent["id"]] for parent in node["parents"]] for node in shown.values()}
    order = ["charge", "structure", "parameters", "seeds", "records", "write", "publish"]
    assert edges == {name: order[max(i - 1, 0) : i] for i, name in enumerate(order)}
