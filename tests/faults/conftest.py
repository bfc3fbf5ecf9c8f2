"""Fixtures of the fault matrix: a cluster to break, and the release as it must come out."""

from collections.abc import Iterator

import pytest
from clusters import DaskProcesses, parts
from releases import KEY, project

from dpdist.lifecycle.run import run_release


@pytest.fixture(scope="session")
def dask_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskProcesses]:
    """One cluster for all tests of a session; each test starts again what it lacks."""
    cluster = DaskProcesses(tmp_path_factory.mktemp("dask"))
    yield cluster
    cluster.stop()


@pytest.fixture
def dask_cluster(dask_processes: DaskProcesses) -> Iterator[DaskProcesses]:
    """The cluster, whole and without orders."""
    dask_processes.start()
    yield dask_processes
    dask_processes.cancel()


@pytest.fixture(scope="session")
def calm(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """The parts of the same release where nothing went wrong."""
    folder = tmp_path_factory.mktemp("calm")
    run_release(project(folder), fixed_key=KEY)
    return parts(folder / "release")
