"""Install a wheel in an empty environment, with what it asks for at the locked versions, and run the tutorial with it.

python tests/wheel.py dist/dpdist-0.1.0-py3-none-any.whl
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def blocks(document: Path) -> list[str]:
    """The Python code of a document."""
    return re.findall(r"```python\n(.*?)```", document.read_text(), flags=re.DOTALL)


def constraints() -> str:
    """The versions of the lock, without hashes: the wheel itself has none."""
    return "\n".join(re.findall(r"^[a-z0-9._-]+==[^\\\n]+", (ROOT / "requirements.lock").read_text(), flags=re.M))


def main() -> None:
    wheel = Path(sys.argv[1]).resolve()
    uv = [sys.executable, "-m", "uv"]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "constraints.txt").write_text(constraints())
        (place / "tutorial.py").write_text("\n".join(blocks(ROOT / "docs" / "python.md")))
        subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, place / "venv"], check=True)
        python = str(place / "venv" / "bin" / "python")
        install = [*uv, "pip", "install", "--quiet", "--python", python, "--constraint", f"{place}/constraints.txt"]
        subprocess.run([*install, f"{wheel}[evaluate]"], check=True)
        subprocess.run([place / "venv" / "bin" / "dpdist", "--version"], check=True)
        subprocess.run([python, "tutorial.py"], cwd=place, check=True, stdout=subprocess.DEVNULL)
    print(f"{wheel.name}: the tutorial runs in an empty environment")


if __name__ == "__main__":
    main()
