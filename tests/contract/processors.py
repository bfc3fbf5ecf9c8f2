"""Releases where NumPy, OpenBLAS and the C library take the code of other processors than this one.

``processors.py`` runs every case of `test_digests` where functions and costs err (`perturbed.py`), and all but those
that are alike under each setting that this machine has, in processes of their own, and compares the digests with the
recorded ones. Then a release and a federated round begin under one setting and are resumed under the next, and `dpdist
verify` recomputes them under a third. Each has one charge and the recorded digests.
"""

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path

from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DATA = Path(os.environ.get("DPDIST_DATA", ROOT.parent / "shared" / "data")).resolve()
CORES = {"Haswell": "AVX2", "SkylakeX": "AVX512_SKX", "Nehalem": "SSE42"}
RESUMED = {"acs2013-paper": 7, "acs2013": 3, "adult-federated": 4}
"""Cases that are interrupted, and the stage at whose beginning they are."""

Setting = dict[str, str]


def settings() -> list[Setting]:
    """Environments that together have every level of NumPy and every kernel of OpenBLAS that this machine can run."""
    levels = [name for name in __cpu_dispatch__ if __cpu_features__[name]]
    without = [" ".join(levels[place:]) for place in range(len(levels))]
    cores = [core for core, needs in CORES.items() if __cpu_features__.get(needs, False)]
    plain = "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4,-AVX512F"
    found = []
    for features, core in zip_longest(without, cores):
        found.append({"OPENBLAS_CORETYPE": core} if core else {})
        found[-1] |= {"NPY_DISABLE_CPU_FEATURES": features} if features else {}
    return [{"GLIBC_TUNABLES": plain} | setting for setting in found[:1] or [{}]] + found[1:]


def run(setting: Setting, *words: str) -> str:
    """Run this file, or dpdist, in a process with the setting."""
    own = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}:{HERE}", "DPDIST_TEST_KEYS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words], env={**os.environ, **own, **setting}, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} under {setting} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout


def differing(setting: Setting) -> list[str]:
    """The cases whose digests differ under a setting."""
    import test_digests

    names = [name for name in test_digests.CASES if name not in test_digests.ALIKE]
    return others(json.loads(run(setting, __file__, "digests", *names)))


def moved(part: int) -> list[str]:
    """The cases of a half whose digests differ where functions and costs err."""
    import test_digests

    names = list(test_digests.CASES)[part::2]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "digests.json"
        run({}, str(HERE / "perturbed.py"), str(out), *names)
        return others(json.loads(out.read_text()))


def others(found: dict[str, object]) -> list[str]:
    """The cases whose digests are not the recorded ones."""
    import test_digests

    expected = test_digests.recorded()
    return [name for name in found if found[name] != expected[name]]


def resumed(name: str, stage: int, order: list[Setting]) -> bool:
    """Whether a case has the recorded digests that begins under one setting and ends under another."""
    import test_digests

    with tempfile.TemporaryDirectory() as folder:
        run(order[0], __file__, "interrupt", name, str(stage), folder)
        found = json.loads(run(order[1], __file__, "finish", name, folder))
        run(order[2], "-m", "dpdist", "verify", f"{folder}/release", "--ledger", f"sqlite:///{folder}/ledger.db")
    return bool(found == test_digests.recorded()[name])


def main() -> None:
    """Run all of it; exit with 1 where anything differs."""
    every, failed = settings(), list[str]()
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # what takes longest first, so that no core waits for another
        found = {"functions and costs err": [pool.submit(moved, part) for part in range(2)]}
        found |= {f"{setting}": [pool.submit(differing, setting)] for setting in every}
        orders = [[every[(place + step) % len(every)] for step in range(3)] for place in range(len(RESUMED))]
        ends = {name: pool.submit(resumed, name, RESUMED[name], o) for name, o in zip(RESUMED, orders, strict=True)}
        for how, parts in found.items():
            names = [name for part in parts for name in part.result()]
            print(f"{how}: {f'other digests of {names}' if names else 'the recorded digests'}", flush=True)
            failed += names
        for name, end in ends.items():
            same = end.result()
            print(f"{name}, resumed under another setting: {'the' if same else 'not the'} recorded digests", flush=True)
            failed += [] if same else [name]
    print(f"processors: {len(every)} settings, {len(failed)} differences")
    raise SystemExit(bool(failed))


def task(kind: str, *words: str) -> None:
    """What a process of `run` does."""
    import test_digests

    find = DATA.joinpath
    if kind == "interrupt":
        test_digests.interrupt(words[0], find, Path(words[2]), stage=int(words[1]))
    elif kind == "finish":
        print(json.dumps(test_digests.finish(words[0], find, Path(words[1]))))
    else:
        found = {}
        for name in words:
            with tempfile.TemporaryDirectory() as folder:
                found[name] = test_digests.released(name, find, Path(folder))
        print(json.dumps(found))


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(HERE)]
    main() if len(sys.argv) == 1 else task(*sys.argv[1:])
