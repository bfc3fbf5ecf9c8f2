"""Draw docs/run.svg: what a release looks like in a terminal, from a real run on a made-up table.

python docs/picture.py
"""

from __future__ import annotations

import io
import re
import tempfile
from pathlib import Path
from typing import Any

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from dpdist.api.display import folded, stage_bars
from dpdist.cli import sample_table as sample
from dpdist.cli.shared import guarantee_lines
from dpdist.ledger import Books
from dpdist.lifecycle.run import run_release
from dpdist.spec.reader import load

DOCS = Path(__file__).parent
FORMAT = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
FORMAT = FORMAT.replace("Fira Code", "ui-monospace, DejaVu Sans Mono")


def main() -> None:
    """Run a release and draw its last screen."""
    console = Console(record=True, width=108, force_terminal=True, file=io.StringIO())
    display, tasks = stage_bars(console), {}

    def progress(stage: str, done: int, total: int) -> None:
        if stage not in tasks:
            tasks[stage] = display.add_task(stage, total=max(total, 1))
        display.update(tasks[stage], completed=done, total=max(total, 1))

    with tempfile.TemporaryDirectory() as folder:
        sample.write(f"{folder}/census", 300_000)
        ledger = Books.open(f"sqlite:///{folder}/ledger.db")
        ledger.create_dataset("demo", epsilon=4, delta="1e-8")
        ledger.close()
        settings: dict[str, Any] = {"ledger": f"sqlite:///{folder}/ledger.db", "data.path": f"{folder}/census"}
        settings |= {"work": f"{folder}/work", "output.path": f"{folder}/release"}
        spec = load(DOCS.parent / "deploy/releases/demo.yaml", settings)
        outcome = run_release(spec, progress=progress)
    console.print("[bold]$ dpdist release deploy/releases/demo.yaml[/bold]")
    console.print(display)
    shown = [*guarantee_lines(outcome.guarantees), "Release     demo/release", f"Records     {outcome.records:,}"]
    console.print(folded("\n".join([*shown, f"Budget      {outcome.budget}"])), highlight=False)
    console.save_svg(str(DOCS / "run.svg"), title="dpdist", code_format=FORMAT)


if __name__ == "__main__":
    main()
