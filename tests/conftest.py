"""Fixtures shared by all tests: public data files, throwaway servers, keys of their own."""

import os

# before NumPy is imported: as in worker processes; the tests themselves take the cores
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
os.environ["DPDIST_TEST_KEYS"] = "1"  # the tables are made up: fixed keys are admitted under contracts
# before Dask is imported: nobody reads its profiles, and idle clusters take a tenth of a core to make them
os.environ.update(
    DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED="False",
    DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL="1s",
    DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL="2s",
    DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD="forkserver",  # workers import nothing anew
)

import atexit
import base64
import ctypes
import dataclasses
import functools
import gc
import io
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import multiprocessing.util
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import distributed.utils
import forkserver
import psutil
import psycopg
import pyarrow as pa
import pytest
import unsynced
from _pytest.assertion import rewrite
from commands import Answer, Command
from distributed import Nanny
from executors import Executors
from hypothesis import settings
from needs import left_out
from xdist.scheduler import LoadFileScheduling

from dpdist.ledger import keys

settings.register_profile("dpdist", max_examples=50, derandomize=True, deadline=None, database=None)
settings.load_profile("dpdist")
unsynced.apply()

multiprocessing.get_context("forkserver").set_forkserver_preload([*forkserver.PRELOADED, forkserver.LAST])
distributed.utils._forkserver_preload_set = True
_nanny = Nanny.__init__
_environment = {name: value for name, value in os.environ.items() if not name.startswith(("DPDIST_KEK", "AWS_"))}


@functools.cache
def _start_forks() -> None:
    """Start the server of worker processes with an environment that no test has changed, and without secrets."""
    path = os.pathsep.join(filter(None, [str(TESTS), _environment.get("PYTHONPATH")]))
    with mock.patch.dict(os.environ, {**_environment, "PYTHONPATH": path}, clear=True):
        multiprocessing.resource_tracker.ensure_running()
        with mock.patch.object(multiprocessing.util, "spawnv_passfds", _forked):
            multiprocessing.forkserver.ensure_running()
    # it would ask for an exit status, which is for the parent alone
    mock.patch.object(multiprocessing.forkserver._forkserver, "ensure_running", return_value=None).start()


def _forked(_: object, args: list[str], files: Any) -> int:
    """Stands for `multiprocessing.util.spawnv_passfds`: a fork, which has imported everything."""
    return forkserver.Python([sys.executable, *args[args.index("-c") :]], pass_fds=files).pid


def _with_environment(self: Nanny, *args: Any, env: dict[str, str] | None = None, **settings: Any) -> None:
    """A nanny whose worker has the environment of the moment, as a process that is spawned has."""
    _start_forks()
    _nanny(self, *args, env={**os.environ, **(env or {})}, **settings)


Nanny.__init__ = _with_environment

TESTS = Path(__file__).parent
TOGETHER = ("flows", "faults", "evaluate")
"""Folders whose files share servers or imports that take seconds: one process runs them all, and begins with them."""
LONG = ("contract", "deploy", "statistical", "families")
"""Folders with the longest files: they come next, so that at the end no process waits for another."""


def pytest_configure(config: pytest.Config) -> None:
    """Let all processes that run tests have one server of forks, and find their files compiled."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        forkserver.share()
        if not sys.dont_write_bytecode:
            places = [Path(place.split("::")[0]) for place in config.args]
            files = {file for place in places for file in [place, *place.rglob("test_*.py")] if file.is_file()}
            with multiprocessing.get_context("fork").Pool() as pool:
                pool.map(_compile, sorted(files), chunksize=1)


def _compile(file: Path) -> None:
    """Compile a file of tests as pytest does: each process would, for seven seconds in all."""
    compiled = rewrite.get_cache_dir(file) / f"{file.stem}{rewrite.PYC_TAIL}"
    if rewrite.try_makedirs(compiled.parent) and rewrite._read_pyc(file, compiled) is None:
        source, code = rewrite._rewrite_test(file, None)  # type: ignore[arg-type]
        rewrite._write_pyc(mock.Mock(), code, source, compiled)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let ``--dist loadfile`` give the tests of a file, or of a folder of `TOGETHER`, to one process."""
    if config.getoption("dist") != "loadfile":
        return None
    scheduler = LoadFileScheduling(config, log)
    scheduler._split_scope = _place
    return scheduler


def _place(nodeid: str) -> str:
    file = nodeid.split("::", 1)[0]
    return next((folder for folder in TOGETHER if folder in Path(file).parts), file)


SLOW = ("statistical", "faults")
"""Folders whose tests are all marked as slow, as those of a Prefect server are: it is started once."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file without a slow test where slow ones are asked for: half of the imports are for the others."""
    if config.getoption("markexpr") != "slow" or not collection_path.match("test_*.py"):
        return None
    if _room(collection_path) in (*SLOW, "flows") or re.search("mark.slow|prefect_home", collection_path.read_text()):
        return None
    return True


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, and mark what is slow."""
    for item in items:
        if _room(item.path) in SLOW or "prefect_home" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
    order = {name: number for number, name in enumerate((*TOGETHER, *LONG))}
    items.sort(key=lambda item: order.get(_room(item.path), len(order)))


@functools.cache
def _room(path: Path) -> str:
    """The folder of tests that a file is in."""
    return path.relative_to(TESTS).parts[0]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why tests were left out, in one line for each reason."""
    reasons = Counter(str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", ()))
    for reason, number in reasons.most_common():
        terminalreporter.line(f"{number:5} {reason.removeprefix('Skipped: ')}")


DATA = Path(os.environ.get("DPDIST_DATA", TESTS.resolve().parents[1] / "shared" / "data"))


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """Path of a public data file."""

    def path(name: str) -> Path:
        file = DATA / name
        if not file.exists():
            left_out("public data", "set DPDIST_DATA to the folder that holds it")
        return file

    return path


@pytest.fixture(scope="module")
def executors() -> Iterator[Executors]:
    """One executor of each kind for the tests of a file; idle clusters take time from the tests after it."""
    opened = Executors()
    yield opened
    opened.close()


_STEP = 30 * 2**20
_kept = 0


@pytest.fixture(scope="module", autouse=True)
def _give_memory_back() -> Iterator[None]:
    """Give the system what a file of tests has left behind: what is remembered, cycles, and pages that are free."""
    global _kept
    yield
    if psutil.Process().memory_info().rss > _kept + _STEP:
        for module in [module for name, module in sys.modules.items() if name.startswith("dpdist.")]:
            for value in vars(module).values():
                if isinstance(value, functools._lru_cache_wrapper) and value.cache_parameters()["maxsize"]:
                    value.cache_clear()
        gc.collect()
        pa.default_memory_pool().release_unused()
        with suppress(AttributeError):  # glibc has it
            ctypes.CDLL(None).malloc_trim(0)
        _kept = psutil.Process().memory_info().rss


def pytest_collection() -> None:
    """Search for no cycles in what is imported and collected: it stays."""
    gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Keep what was imported out of searches for cycles: each would look through all of it."""
    gc.enable()
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)


@pytest.fixture
def few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of five trees: for tests of what models are given and what is written, not of how good models are."""
    from dpdist.evaluation.utility import learning, models

    few = {
        "random forest": ("ensemble:RandomForest", {"n_estimators": 5, "min_samples_leaf": 3}),
        "AdaBoost": ("ensemble:AdaBoost", {"n_estimators": 5}),
        "gradient boosting": ("ensemble:HistGradientBoosting", {"max_iter": 5}),
    }
    for kinds, ending in ((models.CLASSIFIERS, "Classifier"), (learning.REGRESSORS, "Regressor")):
        for name in few.keys() & kinds.keys():
            made = models.estimator(few[name][0] + ending, **few[name][1])
            monkeypatch.setitem(kinds, name, dataclasses.replace(kinds[name], make=made))
    monkeypatch.setattr(learning, "_FOREST_TREES", 5)


@pytest.fixture
def undrawn(few_trees: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """`few_trees`, and plots without shapes: for tests of what is computed and told, not of what plots show."""
    from matplotlib.figure import Figure

    empty = b'<svg xmlns="http://www.w3.org/2000/svg"><g/></svg>'
    monkeypatch.setattr(Figure, "savefig", lambda self, file, **_: file.write(empty))


SERVER = TESTS / "servers" / "postgres.sh"


@pytest.fixture(autouse=True)
def _own_keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test sees the key-encryption key of the machine, nor another test's cached keys."""
    monkeypatch.delenv("DPDIST_KEK", raising=False)
    monkeypatch.delenv("DPDIST_KEK_FILE", raising=False)
    keys.forget_keys()
    yield
    keys.forget_keys()


@pytest.fixture
def synced() -> Iterator[None]:
    """Sync files and SQLite databases, as outside of the tests."""
    unsynced.undo()
    yield
    unsynced.apply()


@pytest.fixture
def dpdist(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """The command line in this process, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPDIST_LEDGER", f"sqlite:///{tmp_path}/ledger.db")

    def run(*arguments: str) -> Answer:
        from dpdist.cli import main

        monkeypatch.setattr(sys, "argv", ["dpdist", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO())
        monkeypatch.setattr(gc, "freeze", lambda: None)  # the command thinks that its process will end
        capsys.readouterr()
        collecting = gc.get_threshold()
        with pytest.raises(SystemExit) as stop:
            main()
        gc.set_threshold(*collecting)
        shown = capsys.readouterr()
        return Answer(int(stop.value.code or 0), shown.out, shown.err)

    return run


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[tuple[str, str]]:
    """(URL of a database, folder) of a PostgreSQL server."""
    started = subprocess.run([SERVER, "start"], capture_output=True, text=True)
    if started.returncode == 69:
        left_out("PostgreSQL", "apt-get install postgresql")
    if started.returncode != 0:
        pytest.fail(f"PostgreSQL did not start: {started.stderr}")
    fields = dict(part.split("=", 1) for part in started.stdout.split())
    with psycopg.connect(fields["url"].replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("CREATE DATABASE ledger")
    yield fields["url"].removesuffix("/postgres") + "/ledger", fields["dir"]
    subprocess.run([SERVER, "stop", fields["dir"]], check=True)


@pytest.fixture
def postgres_url(postgres_server: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of an empty PostgreSQL database; DPDIST_KEK is set."""
    monkeypatch.setenv("DPDIST_KEK", base64.b64encode(bytes(range(32))).decode())
    url = postgres_server[0]
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        # one for all tests: a new one has three hundred files
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public; GRANT USAGE ON SCHEMA public TO PUBLIC")
    return url


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a ledger that is not made yet, on each database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.db"
    return str(request.getfixturevalue("postgres_url"))
