"""The tables of benchmarks.md, made from the results in ``tests/benchmarks/results``.

    python docs/figures.py          # write the tables of benchmarks.md again
    python docs/figures.py --check  # fail if they differ

Each table of the page stands between ``<!-- table NAME -->`` and ``<!-- end -->``; ``TABLES`` makes it. The site's page
*All results* shows every table of every file.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "tests" / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"

Rows = list[list[str]]


class Table:
    """One table of a file of results."""

    def __init__(self, name: str) -> None:
        file, _, key = name.partition(".")
        found = json.loads((RESULTS / f"{file}.json").read_text())["tables"][key]
        self.title, self.columns, self.rows = found["title"], found["columns"], found["rows"]

    def where(self, **values: str) -> Table:
        """Return the rows whose columns have values; column names are written with ``_`` for a space."""
        kept = object.__new__(Table)
        kept.title, kept.columns, kept.rows = self.title, self.columns, self.rows
        for name, value in values.items():
            at = self.columns.index(name.replace("_", " "))
            kept.rows = [row for row in kept.rows if row[at] == value]
        if not kept.rows:
            raise KeyError(f"{self.title}: no row has {values}")
        return kept

    def starting(self, text: str) -> Table:
        """Return the rows whose first cell begins with a text."""
        kept = object.__new__(Table)
        kept.title, kept.columns = self.title, self.columns
        kept.rows = [row for row in self.rows if row[0].startswith(text)]
        if not kept.rows:
            raise KeyError(f"{self.title}: no row begins with {text}")
        return kept

    def only(self, *columns: str) -> Rows:
        """Return the rows with these columns."""
        places = [self.columns.index(name) for name in columns]
        return [[row[at] for at in places] for row in self.rows]

    def cell(self, column: str) -> str:
        """Return a column of the only row."""
        ((value,),) = self.only(column)
        return value


def bracketed(text: str) -> tuple[str, str]:
    """Return what stands before and within brackets: ours, and the paper's."""
    ours, _, theirs = text.partition(" (")
    return ours, theirs.rstrip(")")


def quality() -> Rows:
    """Return quality beside other packages at the same (ε, δ)."""
    columns = ("table", "ε", "method", "1-way", "2-way", "3-way", "gradient boosting", "CPU seconds", "MB")
    left_out = ("the real records", "dpdist, network with all attributes resampled", "dpdist, independent marginals")
    rows = [row for row in Table("peers.methods").only(*columns) if row[2] not in left_out and row[1] not in ("3", "8")]
    return [list(columns), *(row for row in rows if not row[2].startswith("PrivBayes"))]


def speed() -> Rows:
    """Return seconds and memory by size, with ratios to the baseline of the same run."""
    rows = [["rows in", "what", "seconds", "CPU seconds", "MB", "CPU, baseline = 1", "memory, baseline = 1"]]
    plain: list[str] = []
    for row in Table("baseline.million").rows:
        plain = row if row[1] == "without privacy" else plain
        rows.append([*row, *(f"{float(row[at]) / float(plain[at]):.2f}" for at in (3, 4))])
    for what, seconds, cpu, driver, worker in Table("speed.release").rows[3:]:
        size, _, how = what.partition(" rows")
        if how in (", one worker process", ", threads"):
            continue
        rows.append(
            [
                size,
                "dpdist" + (how if how.startswith(",") else ""),
                seconds,
                cpu,
                f"{driver[:-3]}" + (f", a worker {worker[:-3]}" if worker else ""),
                "",
                "",
            ]
        )
    return rows


def covered() -> Rows:
    """Return the coverage of cells above 0.1 % of the table, and of answers: on average, and with the worst key."""
    cells, answers = Table("coverage.table"), Table("coverage.answers")
    orders, kinds = ("one-way", "two-way", "three-way"), ("quantiles", "means", "differences", "regressions")
    rows = [["table", "ε", *orders, *kinds]]
    for table, epsilon in product(dict.fromkeys(row[0] for row in answers.rows), ("0.1", "1", "4")):
        of = answers.where(table=table, ε=epsilon)
        found = [
            *cells.where(table=table, ε=epsilon).only(*orders)[0],
            *(of.where(of=k).cell("coverage") for k in kinds),
        ]
        rows.append([table, epsilon, *("/".join(bracketed(text)) for text in found)])
    return rows


def groups() -> Rows:
    """Return errors of means within areas."""
    table = Table("groups.means")
    columns = [name for name in table.columns[1:] if "0.5" not in name]
    return [columns, *table.where(groups="areas").only(*columns)[:3]]


def attacks() -> Rows:
    """Return what the attacks of an evaluation find."""
    columns = ("table", "release", "closest record", "density", "shadow models", "linkage", "inference")
    return [list(columns), *Table("attacks.evaluate").only(*columns)]


def household_attacks() -> Rows:
    """Return what attacks on households find, as areas."""
    table = Table("attacks.households")
    rows = [["release", "targets", "closest parent", "density", "pairs"]]
    for release, targets in dict.fromkeys((row[0], row[1]) for row in table.rows):
        found = table.where(release=release, targets=targets)
        rows.append([release, targets, *(found.where(attack=name).cell("AUC") for name in rows[0][2:])])
    return rows


def audit() -> Rows:
    """Return lower bounds on ε beside the stated ones."""
    columns = ("mechanism", "stated ε", "δ", "at least", "releases")
    left_out = (
        "structure, total variation",
        "2 count tables, Laplace",
        "10 released records, k 6, ε₀ 1",
        "2 histograms, Gaussian",
    )
    rows = Table("audit.mechanisms").only(*columns)
    return [list(columns), *(row for row in rows if row[0] not in left_out and "replacement" not in row[0])]


def options() -> Rows:
    """Return what each option costs or gains."""
    rules, weights, levels = (
        Table("rules.persons"),
        Table("weights.population").where(release="synthesis"),
        Table("levels.persons"),
    )
    households, seeds = Table("households.distances"), Table("seeds.models").where(records="10,000")
    incomes = Table("histogram.adaptive").where(column="ACS 2024 income", ε="1")
    units = Table("units.hospital").where(visits="100 M", load="7 to 10")
    insurance, clients = Table("prediction.linked").where(table="Insurance"), Table("mixing.clients")
    prior = Table("prior.prior").where(case="persons", epsilon="0.25")
    regression = Table("regression.tables").where(**{"table,_rows": "ACS 2013, 100,000"}, ε="1")
    declared = (
        Table("coverage.declared").where(table="Adult", ε="1").cell("two-way distance: with, without").split(", ")
    )
    bias = Table("seeds.bias").where(**{"kept_of_11": "6"})
    rows = [
        [
            "rules",
            "ACS persons, twelve rules: two-way distance",
            *(rules.starting(name).cell("2-way") for name in ("without", "with twelve")),
        ],
        ["", "CPU seconds", *(rules.starting(name).cell("CPU seconds") for name in ("without", "with twelve"))],
        [
            "weights",
            "ACS persons, at most 400: error of population totals, %",
            *(weights.where(counts=name).cell("error, %") for name in ("once", "at most 400")),
        ],
        [
            "hierarchies",
            "ACS persons: distance of groups × states × sex",
            *(levels.where(codes=name).cell("groups × states × sex") for name in ("values", "levels")),
        ],
        [
            "a unit",
            "100 M visits, ten a patient, six histograms: CPU ns a visit",
            units.cell("CPU ns a visit: records"),
            units.cell("patients"),
        ],
        [
            "linked tables",
            "ACS households, ε = 1: two-way distance of persons",
            *households.starting("persons, two-way").only("apart", "ε = 1")[0],
        ],
        [
            "a public table",
            "27,000 ACS persons, others as public, ε = 0.25: two-way distance",
            *(prior.where(kind=kind).cell("tvd_2") for kind in ("without", "with the prior")),
        ],
        ["declared regressions", "Adult, ε = 1: two-way distance", declared[1], declared[0]],
        ["model.regression", "ACS 2013, ε = 1: two-way distance", *regression.cell("all pairs").split(" → ")],
        [
            "model.structure: synthesis",
            "10,000 records from seeds: two-way distance",
            *(seeds.where(model=name).cell("2-way") for name in ("network", "synthesis")),
        ],
        [
            "k",
            "six attributes kept, k 50 → 2000: pass rate",
            *(bias.where(k=value).cell("pass rate") for value in ("50", "2000")),
        ],
        [
            "adaptive bins",
            "ACS 2024 income, 64 bins, ε = 1: largest / mean error, %",
            incomes.cell("64 bins: width"),
            incomes.cell("64 bins: adaptive"),
        ],
        [
            "clients",
            "Adult, eight clients, correlated noise: accuracy, %",
            *(clients.where(noise=name).cell("records: accuracy") for name in ("one curator", "correlated")),
        ],
        [
            "",
            "local noise",
            *(clients.where(noise=name).cell("records: accuracy") for name in ("one curator", "local")),
        ],
        [
            "matching",
            "Insurance, nearest → independent, α = 0.5: share of rows linked",
            insurance.cell("nearest, 0.5"),
            insurance.cell("independent, 0.5"),
        ],
        [
            "mechanism: pml",
            "one histogram, α = 0.2, ε = 1: noise scale",
            *reversed(bracketed(Table("histogram.pml_several").where(histograms="1", α="0.2").cell("ε = 1"))),
        ],
    ]
    return [["option", "what is measured", "without", "with"], *rows]


def papers() -> Rows:
    """Return the papers' tables beside ours."""
    rows = [["paper", "figure", "paper", "ours"]]
    acs, game = Table("papers_acs.accuracy"), Table("papers_acs.game")
    for trained in ("reals", "ω = 10", "ω in 5-11"):
        ours, theirs = bracketed(acs.where(trained_on=trained).cell("random forest, accuracy"))
        rows.append(["deniability, Table 3", f"forest trained on {trained}, accuracy, %", theirs, ours])
    for row in (row for row in Table("papers_acs.linear").rows[:5] if row[1]):
        rows.append(["Table 4", f"logistic regression trained on {row[0]}, accuracy, %", row[1], row[2]])
    for against in ("marginals", "ω = 10"):
        ours, theirs = bracketed(game.where(real_records_against=against).cell("random forest"))
        rows.append(["Table 5", f"real records against {against}, forest, right guesses, %", theirs, ours])
    rows += [
        ["DP-CDA, Table 4", f"Adult, ε = {row[0]}, l = {row[1]}: tree, 22 keys, accuracy, %", row[3], row[4]]
        for row in Table("mixing.headline").rows
        if row[0] == "10"
    ]
    cnn = Table("mixing.cnn")
    rows += [
        ["DP-CDA, Table 3", f"MNIST, ε = {row[0]}, l = {row[1]}: network, accuracy, %", row[2], row[3]]
        for row in cnn.rows
    ]
    said = {"public D'": "public D′", "original D": "original D", "nearest, alpha 0.2, with D'": "D′ + D*, α = 0.2"}
    for row in Table("prediction.prices_noise").rows:
        if row[0] in said:
            rows.append(["two-stage, prices", f"{said[row[0]]}: MAPD, noise by brand, %", row[1], row[2]])
    prices = Table("prediction.prices").where(data="D*, α = 0.2").only("LID, paper", "LID")[0]
    rows.append(["two-stage, prices", "D*, α = 0.2: LID, %", *prices])
    for row in Table("prediction.tables_lid").where(bandwidths="paper").rows:
        near = row[3].partition(" | ")[2]
        rows.append(["two-stage, tables", f"{row[0]}, η = 10⁻⁴, α = 0.5: LID of inputs, %", f"at most {row[2]}", near])
    gains = Table("prediction.tables_mse").where(bandwidths="paper", matching="nearest").rows
    reached = [float(mean.partition(" ")[0]) >= float(row[3]) for row in gains for mean in row[4:]]
    found = f"{sum(reached)} of {len(reached)}"
    rows.append(["two-stage, tables", "tables and models whose ΔMSE reaches its bound", "not all", found])
    ours, theirs = bracketed(Table("histogram.entropy").where(column="UNRATE").cell("H (paper)"))
    rows.append(["REAEDP, Table S3", "UNRATE: entropy, bits", theirs, ours])
    for row in Table("histogram.images").rows:
        if row[0] in ("0.5", "1", "2"):
            both = f"{row[1]}, {row[3]}"
            rows.append(["REAEDP, images", f"ε = {row[0]}, Laplace, Gaussian: PSNR, dB", "alike", both])
    return rows


def frames() -> Rows:
    """Return the errors of releases from a frame, beside those of a schema by hand and of other packages;
    each with CPU seconds.
    """
    names = {
        "schema by hand": "by hand",
        "three lines, names and types alone": "three lines",
        "three lines, bounds public": "bounds public",
        "three lines, bounds and values public": "values public",
        "SDV 2.0, Gaussian copula, without privacy": "SDV 2.0, no privacy",
        "OpenDP 0.16, MST": "OpenDP 0.16, MST",
        "OpenDP 0.16, AIM": "OpenDP 0.16, AIM",
    }
    columns = ("table", "way", "2-way, bins of neither", "CPU seconds", "beside by hand")
    cells, ratios = {}, {}
    for table, way, found, seconds, ratio in Table("frame.ways").only(*columns):
        cells[table, way] = found.partition(" ")[0] + f"/{seconds}s" * bool(seconds) if found else "not done"
        if way == "three lines, bounds public":
            ratios[table] = ratio.replace(" ", "")
    tables = dict.fromkeys(table for table, _ in cells)
    rows = [[table, *(cells.get((table, way), "") for way in names), ratios.get(table, "")] for table in tables]
    return [["table", *names.values(), "bounds public/by hand"], *rows]


TABLES: dict[str, Callable[[], Rows]] = {
    "quality": quality,
    "speed": speed,
    "covered": covered,
    "groups": groups,
    "attacks": attacks,
    "households": household_attacks,
    "audit": audit,
    "frames": frames,
    "options": options,
    "papers": papers,
}


def markdown(rows: Sequence[Sequence[object]]) -> str:
    """Return rows, the first with the names of columns, as a Markdown table."""
    lines = ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def rendered(text: str) -> str:
    """Return a page with its tables made again."""

    def table(found: re.Match[str]) -> str:
        return f"<!-- table {found[1]} -->\n\n{markdown(TABLES[found[1]]())}\n\n<!-- end -->"

    return re.sub(r"<!-- table (\w+) -->\n.*?<!-- end -->", table, text, flags=re.DOTALL)


def results_page() -> str:
    """Return the page of the site with every table of every file."""
    lines = [
        "# All results",
        "",
        "Every measured table, with the command and the machine. [Benchmarks](benchmarks.md) has the conclusions.",
    ]
    for path in sorted(RESULTS.glob("*.json")):
        content: dict[str, Any] = json.loads(path.read_text())
        lines += ["", f"## {path.stem.replace('_', ' ')}"]
        for table in content["tables"].values():
            about = f"`{table['command']}` (dpdist {content['version']}; {table['machine']})"
            lines += ["", f"### {table['title']}", "", " ".join(filter(None, [table.get("note", ""), about])), ""]
            lines += [markdown([table["columns"], *table["rows"]])]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    page = PAGE.read_text()
    if "--check" in sys.argv[1:]:
        sys.exit(rendered(page) != page and "docs/benchmarks.md differs from the results: python docs/figures.py")
    PAGE.write_text(rendered(page))
