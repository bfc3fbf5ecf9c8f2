"""The whole house on 127.0.0.1: a release by Prefect deployment on Dask with TLS, S3 (Ceph) and PostgreSQL.

    python tests/e2e/run.py [--json FILE] [--kill] [--keep]

Starts everything, deploys, releases 100,000 records of the ACS 2024 table (of a made-up one, where there is no copy of
it), verifies them, evaluates them to a confidential bucket, cancels a second release in the middle and continues it,
runs a third from two deployments at once, lets a fourth be refused for a value out of its domain, breaks the store at
every moment of a release, and then searches all that PostgreSQL, Prefect, Dask and the store hold for planted private
values and for the keys.
"""

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from house import BUCKET, DATA, MADE_UP, PAGES, SPEC, House
from servers import ROOT, install_missing, wait_for


def release(house: House) -> None:
    """The release by deployment, verified."""
    start = time.perf_counter()
    flow_run = house.begin("deployed")
    wait_for("the key", lambda: house.note_key("deployed"), seconds=300, alive=house.processes.alive)
    state = house.finish(flow_run)
    house.seconds["the deployment alone"] = round(time.perf_counter() - start, 1)
    expect(state.is_completed(), f"the flow run is {state.type}: {state.message}")
    said = house.processes.run("verify", f"{BUCKET}/releases/deployed")
    expect("integrity only, 100,000 records" in said, said)
    expect(house.attempts()["deployed"] == ["committed"], "the ledger has one committed charge")


def plain(house: House) -> None:
    """The release by the command line: for comparison, and to warm up the workers."""
    settings = [f"--set={name}={value}" for name, value in house.settings("plain").items()]
    start = time.perf_counter()
    house.processes.run("release", SPEC, *settings)
    house.seconds["the command alone"] = round(time.perf_counter() - start, 1)
    house.processes.run("verify", f"{BUCKET}/releases/plain")


def pages(house: House) -> None:
    """The page of the release and the page of the ledger, by their deployments, in a bucket of their own."""
    import s3fs

    evaluation = {
        "release": f"{BUCKET}/releases/deployed",
        "output": "deployed",
        "spec": SPEC,
        "options": {"attacks": False},
    }
    evaluation["settings"] = house.settings("deployed")
    begun = [house.run("evaluate/evaluate", **evaluation), house.run("ledger/ledger", page="all/ledger.html")]
    for flow_run in begun:
        state = house.finish(flow_run)
        expect(state.is_completed(), f"the flow run is {state.type}: {state.message}")
    found = s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True).find(PAGES)
    wanted = ["all/ledger.html", "deployed/evaluation.html", "deployed/evaluation.json"]
    expect(found == [f"{PAGES.removeprefix('s3://')}/{name}" for name in wanted], f"the pages are {found}")


def cancel(house: House) -> None:
    """A run that is cancelled leaves no work on the cluster; the next one continues its attempt."""
    from prefect import get_client
    from prefect.states import Cancelling

    flow_run = house.begin("cancelled")
    with house.client() as client:

        def tasks() -> int:
            return int(client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)))

        wait_for("work on the cluster", tasks, seconds=300, alive=house.processes.alive)
        client.dump_cluster_state(str(house.folder / "running"), format="yaml")
        house.note_key("cancelled")
        with get_client(sync_client=True) as prefect:
            prefect.set_flow_run_state(flow_run.id, Cancelling())
        expect(house.finish(flow_run).is_cancelled(), "the flow run is cancelled")
        wait_for("an idle cluster", lambda: not tasks(), seconds=60, alive=house.processes.alive)
    expect(house.attempts()["cancelled"] in (["drawing"], ["reserved"]), "the cancelled attempt is open")
    expect(house.finish(house.begin("cancelled")).is_completed(), "the next run continues it")
    expect(house.attempts()["cancelled"] == ["committed"], "at no second charge")


def kill(house: House) -> None:
    """A flow process that is killed leaves an open attempt; the next run continues it."""
    house.begin("killed")
    with house.client() as client:
        wait_for(
            "work on the cluster",
            lambda: client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)),
            seconds=300,
            alive=house.processes.alive,
        )
    for process in house.processes.children("flow-worker"):
        process.kill()
    expect(house.finish(house.begin("killed")).is_completed(), "the next run continues it")
    expect(house.attempts()["killed"] == ["committed"], "at no second charge")
    house.processes.run("verify", f"{BUCKET}/releases/killed")


def twice(house: House) -> None:
    """Two deployments run the same release at once: one waits for the other and finds it published."""
    runs = [house.begin("twice", deployment=name) for name in ("process", "second")]
    expect(all(house.finish(run).is_completed() for run in runs), "both runs complete")
    expect(house.attempts()["twice"] == ["committed"], "at one charge")


def faults(house: House) -> None:
    """The fault matrix of the storage, on the real server behind a gateway that fails."""
    environment = {**house.processes.environment, "DPDIST_TEST_S3": house.processes.environment["AWS_ENDPOINT_URL"]}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/faults/test_release_storage.py"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    expect(done.returncode == 0, done.stdout[-3000:])


def refuse(house: House) -> None:
    """A table with a value out of its domain: a clear error without the value, and one charge, which stays."""
    state = house.finish(house.begin("refused", **{"data.path": f"{BUCKET}/bad", "data.extra_columns": "refuse"}))
    expect(state.is_failed(), f"the flow run is {state.type}")
    expect("domain" in (state.message or ""), f"unclear: {state.message}")
    expect(house.attempts()["refused"] == ["drawing"], "it was charged once")
    charges = json.loads(house.processes.run("ledger", "show", "--json"))[0]["charges"]
    attempt = next(charge["attempt"] for charge in charges if charge["release"] == "refused")
    house.processes.run("ledger", "give-up", attempt, "--yes")
    expect(house.attempts()["refused"] == ["abandoned"], "given up, it stays charged and loses its key")


def search(house: House) -> dict[str, list[str]]:
    """Where private texts are found: dumps of both databases, logs, listings, manifests, the state of the cluster."""
    import s3fs

    fs = s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True)
    found = {path: str(info["size"]) for path, info in fs.find(BUCKET, detail=True).items()}
    places = {"object listing": json.dumps(found).encode()}
    for path in found:
        if "/releases/" in path and path.endswith(".json"):
            places[path] = fs.cat_file(path)
    for name in ("prefect", "ledger"):
        dump = ["pg_dump", "--inserts", f"{house.postgres}/{name}"]
        places[f"dump of {name}"] = subprocess.run(dump, check=True, capture_output=True).stdout
    with house.client() as client:
        client.dump_cluster_state(str(house.folder / "idle"), format="yaml")
    for path in house.folder.rglob("*"):
        inside = path.relative_to(house.folder).parts[0]
        if path.is_file() and inside not in ("kek", "census", "named.parquet", "bad.parquet", "tls"):
            places[str(path.relative_to(house.folder))] = path.read_bytes()
    expect(b"deployed" in places["dump of prefect"] and b"committed" in places["dump of ledger"], "the dumps are whole")
    logs = b"".join(content for name, content in places.items() if name.endswith(".log"))
    expect(all(text in logs for text in (b'"attempt reserved"', b'"task finished"')), "flows and workers write logs")
    expect("running.yaml" in places and b"read-encode" in places["running.yaml"], "the state of the cluster is whole")
    keys = [path for path in found if path.endswith("key.json")]
    expect(not keys, f"keys are erased when an attempt ends: {keys}")
    return {name: leaks for name, text in house.private.items() if (leaks := where(text, places))}


def where(text: str, places: dict[str, bytes]) -> list[str]:
    """Names of the places that hold a text; a number counts where it stands alone."""
    pattern = re.escape(text.encode("latin-1"))
    if text.isdigit():
        pattern = rb"(?<![0-9.])" + pattern + rb"(?![0-9])"
    return [place for place, content in places.items() if re.search(pattern, content)]


def expect(condition: bool, message: str) -> None:
    """Stop with a message unless the condition holds."""
    if not condition:
        raise SystemExit(f"end-to-end run: {message}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the durations here")
    parser.add_argument("--kill", action="store_true", help="kill a flow process too (about 90 s more)")
    parser.add_argument("--keep", action="store_true", help="keep the folder with the logs")
    arguments = parser.parse_args()
    if MADE_UP:
        print(f"no {DATA.name} in DPDIST_DATA: a made-up table is released instead")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # stops what was started, as an error does
    house = House(Path(tempfile.mkdtemp(prefix="dpdist-e2e-")))
    start = time.perf_counter()
    steps: dict[str, Callable[[House], object]] = {
        "servers": lambda house: (install_missing(), house.start()),
        "tables with planted values": House.fill,
        "deployment": House.deploy,
        "release by the command line, verified": plain,
        "the same by deployment": release,
        "evaluated to a confidential bucket, and the page of the ledger": pages,
        "cancelled and continued": cancel,
        "two deployments of one release at once": twice,
        "refused": refuse,
        "faults of S3": faults,
    }
    if arguments.kill:
        steps["killed and continued"] = kill
    try:
        for name, step in steps.items():
            with house.step(name):
                step(house)
        with house.step("search for private values and keys"):
            leaks = search(house)
        expect(not leaks, f"found {leaks}")
    except BaseException:
        arguments.keep = True
        print(f"logs: {house.folder}", file=sys.stderr)
        raise
    finally:
        house.processes.stop()
        if not arguments.keep:
            shutil.rmtree(house.folder)
    added = house.seconds["the deployment alone"] - house.seconds["the command alone"]
    print(f"the flow adds {added:.1f} s to the command line")
    total = round(time.perf_counter() - start, 1)
    print(f"all: {total} s; searched for {len(house.private)} private texts, found none")
    if arguments.json:
        arguments.json.write_text(json.dumps({"seconds": {**house.seconds, "all": total}}, indent=2))


if __name__ == "__main__":
    main()
