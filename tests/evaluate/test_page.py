"""The page: what it escapes, what it forbids, how it looks in a browser."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from needs import left_out

from dpdist.evaluation.page import page as page_module
from dpdist.evaluation.page import panels, plots
from dpdist.evaluation.page.page import PageAbout, PageSection, PageTable, Plot, plain, render, text_of
from dpdist.evaluation.records import view_of
from dpdist.spec.schema import Schema
from tests.evaluate.browser import chromium, visit

EVIL = "</td></script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{7*7}}$\\foo^{"


def sections(label: str = "plain") -> list[PageSection]:
    rng = np.random.default_rng(0)
    rows = tuple((f"{label} {i}", float(i % 3), None if i == 1 else i * 1_000) for i in range(8))
    names = [f"{label}-{i}" for i in range(4)]
    drawn = (
        plots.box_plot(label, {label: [(label, rng.random(9), plots.REAL)]}, label=label),
        plots.bar_plot(label + " bars", names, [(label, [0.1, 0.2, 0.3, 0.4], plots.RELEASED)], label=label),
        plots.heat_maps(label + " maps", names, [(label, rng.random((4, 4)) - 0.5)], alt=label),
        plots.density_plot(
            label + " cloud", [(label, rng.normal(size=(300, 2)), plots.OTHER)], labels=(label, label), alt=label
        ),
    )
    table = PageTable(label, (label, "b", "c"), rows, note=label)
    return [
        PageSection("marginals", label, label, "good", (table,), drawn, {label: label}),
        PageSection("models", "Models", "ok", "bad"),
    ]


def page(label: str = "plain") -> str:
    about = PageAbout(name=label, facts=((label, label),), guarantees=(label,), not_private=label, footer=label)
    return render(about, sections(label))


class Tags(HTMLParser):
    """All tags with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_labels_of_the_data_are_text_wherever_they_stand() -> None:
    ours, plain = Tags(page(EVIL)).found, Tags(page()).found
    assert [tag for tag, _ in ours if tag in ("script", "img", "iframe", "style", "link")] == ["style", "script"]
    for _, attributes in ours:
        assert not any(name.startswith("on") for name in attributes)
    assert {tag for tag, _ in ours} == {tag for tag, _ in plain}
    assert page("{{7*7}}").count("{{7*7}}") > 10


def test_every_section_asks_its_question() -> None:
    """The names are those that sections have; a section that is renamed would lose its question."""
    folder = Path(page_module.__file__).parents[1]
    code = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.py") if path.name != "page.py")
    for name, question in page_module.QUESTIONS.items():
        assert f'"{name}"' in code, name
        assert question.endswith(("?", "all."))
    assert page_module.QUESTIONS["marginals"] in page()


def test_control_characters_are_seen_and_do_nothing() -> None:
    text = page("a\u202eb\x07\x1b[31m")
    assert "a\ufffdb\ufffd\ufffd[31m" in text
    assert not set(text) & set("\u202e\x07\x1b")
    assert PageSection("a", "A", "50 % of \x1b[2J 3%", "info").verdict == "50\u00a0% of \ufffd[2J 3\u00a0%"


def test_the_policy_forbids_all_but_the_two_blocks_of_the_page() -> None:
    text = page()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    directives = dict(part.strip().split(" ", 1) for part in policy[1].replace("&#39;", "'").split(";"))
    assert directives["default-src"] == "'none'"
    assert directives["base-uri"] == directives["form-action"] == "'none'"
    for tag in ("style", "script"):
        block = re.search(f"<{tag}>(.*?)</{tag}>", text, re.S)
        digest = base64.b64encode(hashlib.sha256(block[1].encode()).digest()).decode()
        assert directives[f"{tag}-src"] == f"'sha256-{digest}'"
    assert text.count("<script") == text.count("<style") == 1
    assert " style=" not in text
    assert not re.search(r"(?:src|href)=\"(?!#)", text)
    assert "http" not in re.sub(r"http-equiv|<style>.*?</style>", "", text, flags=re.S)


def test_it_says_that_it_is_confidential_first() -> None:
    body = page().split("<body>")[1]
    assert body.index("CONFIDENTIAL") < body.index("<main>")


@pytest.mark.parametrize(
    "svg",
    [
        "<p>x</p>",
        "<svg><script>alert(1)</script></svg>",
        '<svg onload="alert(1)"></svg>',
        '<svg><image href="x"/></svg>',
        '<svg><rect fill="url(https://example.org/x)"/></svg>',
        "<svg><foreignObject/></svg>",
        "<svg></svg><b></b>",
    ],
)
def test_plots_that_could_do_more_than_show_are_refused(svg: str) -> None:
    section = PageSection("a", "A", "v", "info", plots=(Plot("t", svg, "a"),))
    with pytest.raises(ValueError, match="svg_of"):
        render(PageAbout(name="n", facts=(), guarantees=()), [section])


def test_anchors_are_letters_and_differ() -> None:
    for names in (("a", "a"), ("a b", "c"), ('"', "c")):
        with pytest.raises(ValueError, match="names of sections"):
            render(
                PageAbout(name="n", facts=(), guarantees=()), [PageSection(name, "t", "v", "info") for name in names]
            )


def test_plots_are_in_the_colours_of_the_page_and_repeatable() -> None:
    one, two = (sections()[0].plots for _ in range(2))
    for a, b in zip(one, two, strict=True):
        assert a == b
        assert "style=" not in a.svg
        colours = set(re.findall(r'(?:fill|stroke)="([^"]*)"', a.svg))
        assert colours <= {"none", "currentColor", *(f"var(--{n})" for n in ("faint", "paper", "real", "released")),
                           "var(--other)", "var(--bad)"}  # fmt: skip
    ids = re.findall(r'\bid="([^"]*)"', "".join(plot.svg for plot in one))
    assert len(ids) == len(set(ids))
    for used in re.findall(r'(?:href="|url\()#([^")]*)', "".join(plot.svg for plot in one)):
        assert used in ids


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (None, "–"),
        (True, "yes"),
        (np.bool_(False), "no"),
        (1234567, "1,234,567"),
        (0.00012345, "0.000123"),
        (3.8471e-05, "0.000038"),
        (-3.8471e-05, "-0.000038"),
        (1e-12, "1e-12"),
        (0.0, "0"),
        (0.1, "0.100"),
        (980.4, "980"),
        (999.7, "1,000"),
        (float("nan"), "–"),
        (123456.7, "123,457"),
        ("x", "x"),
    ],
)
def test_cells(cell: object, text: str) -> None:
    assert text_of(cell) == text


def test_a_section_is_json() -> None:
    table = PageTable("t", ("a", "b"), ((np.float32(0.5), "x"), (np.int64(3), None)), note="n")
    figures = {"mean": np.float64("nan"), "counts": np.arange(3), "ends": (1, float("inf")), "ok": np.bool_(True)}
    section = PageSection("marginals", "Marginals", "Fine.", "good", tables=(table,), figures=figures)
    read = json.loads(json.dumps(section.to_json(), allow_nan=False))
    assert read["figures"] == {"mean": None, "counts": [0, 1, 2], "ends": [1, None], "ok": True}
    assert read["tables"][0]["rows"] == [[0.5, "x"], [3, None]]


def test_rows_have_as_many_cells_as_there_are_columns() -> None:
    with pytest.raises(ValueError, match="needs 2 cells"):
        PageTable("t", ("a", "b"), (("x",),))


def test_what_json_does_not_know_is_refused() -> None:
    with pytest.raises(TypeError, match="PosixPath"):
        plain({"folder": Path("x")})


# --- in a browser -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if chromium() is None:
        left_out("Chromium", "apt-get install chromium")
    path = tmp_path_factory.mktemp("page") / "evaluation.html"
    path.write_text(page(EVIL), encoding="utf-8")
    return path


WIDE = "document.documentElement.scrollWidth <= innerWidth"
SORTED = """(() => {
  const button = document.querySelectorAll("th button")[%d];
  const column = () => [...document.querySelectorAll("tbody tr")].map((row) => row.cells[%d].textContent);
  button.click(); const up = column(); button.click(); return [up, column()];
})()"""
INJECT = """(() => { const s = document.createElement("script"); s.textContent = "window.hit = 1";
  document.body.append(s); new Image().src = "https://example.org/x"; return window.hit === undefined; })()"""


@pytest.mark.parametrize(("width", "dark", "paper"), [(1440, False, False), (390, True, False), (800, False, True)])
def test_nothing_is_logged_or_asked_for(written: Path, width: int, dark: bool, paper: bool) -> None:
    seen = visit(written, width=width, dark=dark, paper=paper, scripts=[WIDE, "getComputedStyle(document.body).color"])
    assert seen.log == []
    assert seen.requests == []
    assert seen.answers[0] is True
    assert seen.answers[1] == ("rgb(230, 233, 237)" if dark else "rgb(0, 0, 0)" if paper else "rgb(27, 31, 36)")


SEEN = """(() => {
  const ends = [...document.querySelectorAll("figure")].map((f) => [
    f.classList.contains("more"), f.querySelector(":scope > .scroll, :scope > .plot")]);
  return ends.filter(([, part]) => part).every(([more, part]) => more === part.scrollWidth > part.clientWidth + 1);
})()"""
MORE = "[...document.querySelectorAll('figure.more > figcaption')].map((caption) => caption.textContent)"
SMALL = """Math.min(...[...document.querySelectorAll(".panels text")].map((text) =>
  parseFloat(text.getAttribute("font-size") || 10) * text.getScreenCTM().a))"""


@pytest.mark.parametrize(("width", "cut"), [(1280, []), (390, ["wide", "map"])])
def test_what_is_cut_says_so_and_panels_can_be_read(width: int, cut: list[str], tmp_path: Path) -> None:
    """A table of eleven columns and panels of attributes on a desktop and on a phone."""
    if chromium() is None:
        left_out("Chromium", "apt-get install chromium")
    axis = view_of(Schema.model_validate({"attributes": [{"name": "age", "kind": "integer", "bounds": [0, 40]}]})).axes[
        0
    ]
    shares = panels.BothShares(axis, np.full(41, 1 / 41), np.full(41, 1 / 41))
    drawn = (
        panels.profile_plot("panels", [shares] * 3),
        plots.heat_maps("map", [f"name {i}" for i in range(16)], [("map", np.ones((16, 16)))], alt="map"),
    )
    columns = ("marginals", "number", "mean", "median", "largest", "two real halves", "independence", "score")
    columns += ("like a part of", "parities", "of halves")
    table = PageTable("wide", columns, tuple((f"{k}-way", *[0.0123] * 10) for k in (4, 5)))
    sections = [PageSection("wide", "Wide", "ok", "good", (table,), drawn)]
    path = tmp_path / "page.html"
    path.write_text(render(PageAbout(name="n", facts=(), guarantees=()), sections), encoding="utf-8")
    seen = visit(path, width=width, scripts=[WIDE, SEEN, MORE, SMALL])
    assert seen.log == []
    fits, says, more, least = seen.answers
    assert (fits, says) == (True, True)
    assert sorted(more) == sorted(cut)
    assert least > 9  # pixels of the smallest text


def test_tables_sort_by_number_and_scripts_that_got_in_do_nothing(written: Path) -> None:
    seen = visit(written, scripts=[SORTED % (2, 2), INJECT])
    up, down = seen.answers[0]
    numbers = ["–", "0", "2,000", "3,000", "4,000", "5,000", "6,000", "7,000"]
    assert up == numbers
    assert down == numbers[::-1]
    assert seen.answers[1] is True  # the policy stopped the script
    assert seen.requests == [] or all("example.org" in address for address in seen.requests)
    assert sum("Content Security Policy" in line for line in seen.log) >= 2
