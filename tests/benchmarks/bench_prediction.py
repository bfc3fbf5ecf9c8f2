"""What two-stage synthetic data are worth to those who predict with them.

Run ``python tests/benchmarks/bench_prediction.py published --json published.json`` with scikit-learn installed.
*published*: the paper's simulated regression with its first stages; *intercepts*: the same by kernel ridge with and
without an intercept; *shifted*: the same, predicted where x3 has another mean; *released*: the first by whole releases;
*sizes*: beside public sets of several sizes; *generators*: one stage or
two, by Latin hypercube or diffusion model; *mismatched-prices*: at other prices than were seen; *paper-prices* and
*paper-tables*: its five brands, and its five tables with its columns, sizes and requirements. *linked*: how often a
released row is nearest to the row it was mixed from. *private*: the differentially private variant beside the published
method and plausible-deniability synthesis, also on a simulated regression of 20,000 records; *clients*: the same by one
curator, by clients with masks, and by clients with noise of their own. Errors are against what
was never used; on tables on the scale of the response. ``--only`` chooses tables. The tasks of the corrected tables
write ``results/prediction.json``.
"""

import json
import os
from collections.abc import Callable
from typing import Any

from harness import argument_parser, write

os.environ.setdefault("OMP_NUM_THREADS", "1")

from prediction_generators import generators
from prediction_models import FILES
from prediction_paper_tables import mismatched_prices, paper_prices, paper_tables
from prediction_private import clients, private
from prediction_published import intercepts, published, released, shifted, sizes
from prediction_tables import linkage


def main() -> None:
    """Run one task, or all of them."""
    tasks: dict[str, tuple[Callable[..., dict[str, Any]], int]] = {
        "published": (published, 20),
        "intercepts": (intercepts, 20),
        "shifted": (shifted, 20),
        "released": (released, 10),
        "sizes": (sizes, 10),
        "generators": (generators, 10),
        "paper-prices": (paper_prices, 10),
        "mismatched-prices": (mismatched_prices, 10),
        "paper-tables": (paper_tables, 20),
        "linked": (linkage, 3),
        "private": (private, 3),
        "clients": (clients, 5),
    }
    parser = argument_parser(__doc__)
    parser.add_argument("task", nargs="?", choices=[*tasks, "all"], default="all")
    parser.add_argument("--size", type=int, help="trials")
    parser.add_argument("--only", nargs="+", choices=["simulation", *FILES], help="for those of several tables")
    options = parser.parse_args()
    chosen = tasks if options.task == "all" else {options.task: tasks[options.task]}
    out = {}
    for name, (task, size) in chosen.items():
        some = (options.only,) if options.only and name in ("linked", "private") else ()
        out[name] = task(options.size or size, *some)
    print(json.dumps(out, indent=2))
    write(options, out)


if __name__ == "__main__":
    main()
