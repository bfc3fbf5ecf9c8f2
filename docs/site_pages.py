"""Pages of the site that no file holds: the first page from the README, the reference from models and commands.

MkDocs calls the functions below (`hooks` in mkdocs.yml). Links that leave docs/ lead to the source.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).parent))
import figures

from dpdist.cli.schema import json_schema_of

ROOT = Path(__file__).parent.parent


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that no file holds."""
    for name, content in (
        ("index.md", landing_page()),
        ("changelog.md", (ROOT / "CHANGELOG.md").read_text().replace("](docs/", "](")),
        ("results.md", figures.results_page()),
        ("reference/spec.md", spec_page()),
        ("reference/schema.md", schema_page()),
        ("reference/contract.md", contract_page()),
        ("reference/cli.md", command_page()),
    ):
        files.append(File.generated(config, name, content=content))
    for kind in ("spec", "schema", "contract"):
        text = json.dumps(json_schema_of(kind), indent=1)
        files.append(File.generated(config, f"schemas/{kind}.json", content=text))
    return files


CARDS = """
![A private table becomes a model, a release and a reader's answer; the budget is charged first](docs/assets/flow.svg)

<div class="grid cards" markdown>

-   **A statistical office** publishes records that anybody can tabulate, with the error of each table.
    [Begin here](docs/how-to/statistical-office.md)
-   **A hospital** gives researchers patients with their visits, and protects each patient with all of them.
    [Begin here](docs/how-to/hospital.md)
-   **A bank** releases each quarter within one budget.
    [Begin here](docs/how-to/bank.md)
-   **A developer** calls three functions, or writes a family.
    [Begin here](docs/python.md)

</div>
"""


def landing_page() -> str:
    """Return the first page: the README, with how data flow and cards after its first sentence."""
    title, sentence, rest = (ROOT / "README.md").read_text().split("\n\n", 2)
    return "\n\n".join([title, sentence, CARDS.strip(), rest]).replace("](docs/", "](")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Let links out of docs/ lead to the source."""
    folder = os.path.dirname(page.file.src_uri)
    if page.file.src_uri in ("index.md", "changelog.md"):
        folder = ".."  # they stand in the root

    def led(found: re.Match[str]) -> str:
        target, _, section = found[1].partition("#")
        path = os.path.normpath(os.path.join("docs", folder, target))
        inside = path.startswith("docs/") or page.file.src_uri in ("index.md", "changelog.md")
        if (inside and not (ROOT / path).exists()) or (path.startswith("docs/") and folder != ".."):
            return found[0]
        return f"]({config.repo_url}/{path}{'#' + section if section else ''})"

    return re.sub(r"\]\((?!https?:|#)([^)\s]+)\)", led, markdown)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Write the types of parameters without the parentheses of a tuple: numpydoc separates them by commas."""
    return re.sub(r"\(<code>\((.*?)\)</code>", r"(<code>\1</code>", html, flags=re.DOTALL)


def spec_page() -> str:
    """Every setting of a spec: what all kinds share, then each kind, then the sections they have."""
    from dpdist.families.base.registry import FAMILIES
    from dpdist.spec.reader import json_schema

    tree = json_schema()
    parts = tree["$defs"]
    kinds = {kind: family.spec_class.__name__ for kind, family in FAMILIES.items()}
    common = set.intersection(*(set(parts[name]["properties"]) for name in kinds.values()))
    lines = [
        "# Spec",
        "",
        "A spec is one YAML file that describes a release. This page is made from the classes that read it; "
        "`dpdist spec schema` prints them as JSON schema. A setting in bold has no default.",
        "",
        "## Every kind",
        "",
        *table(parts[kinds["synthesis"]], parts, only=common - {"kind", "privacy", "data", "output"}),
    ]
    for kind, name in kinds.items():
        own = {key for key in parts[name]["properties"] if key not in common or key in ("privacy", "data", "output")}
        lines += ["", f"## kind: {kind}", "", said(parts[name]), "", *table(parts[name], parts, only=own)]
    lines += ["", "## Sections", ""]
    skipped = {*kinds.values(), *reached(parts, "Schema")}
    for name in sorted((name for name in parts if name not in skipped), key=title):
        lines += ["", f"### {title(name)}", "", said(parts[name]), "", *table(parts[name], parts)]
    return "\n".join(lines) + "\n"


def schema_page() -> str:
    """Every setting of a schema."""
    from dpdist.spec.schema import Schema

    tree = Schema.model_json_schema(by_alias=True)
    example = (ROOT / "deploy" / "releases" / "schemas" / "adult.yaml").read_text()
    text = (
        "A schema says what a table may hold. [How to make one](../how-to/schema.md). `dpdist schema json` prints this "
        "page as JSON schema. A setting in bold has no default."
    )
    return model_page("Schema", text, tree, example)


def contract_page() -> str:
    """Every setting of a contract."""
    from dpdist.spec.contract import Contract

    tree = Contract.model_json_schema(by_alias=True)
    for name in reached(tree["$defs"], "Schema"):
        tree["$defs"].pop(name)
    example = (ROOT / "deploy" / "contracts" / "acs2024.yaml").read_text()
    text = (
        "A contract says what may be asked of a data set ([operations](../operations.md#contracts)). "
        "`dpdist schema json contract` prints this page as JSON schema. A setting in bold has no default."
    )
    return model_page("Contract", text, tree, example)


def model_page(name: str, text: str, tree: Mapping[str, Any], example: str) -> str:
    """A page about one model and its parts."""
    parts = tree.get("$defs", {})
    lines = [f"# {name}", "", text, "", *table(tree, parts)]
    for part in parts:
        lines += ["", f"## {title(part)}", "", said(parts[part]), "", *table(parts[part], parts)]
    return "\n".join([*lines, "", "## Example", "", "```yaml", example.rstrip(), "```", ""])


def table(model: Mapping[str, Any], parts: Mapping[str, Any], *, only: set[str] | None = None) -> list[str]:
    """The settings of a model as a Markdown table."""
    required = set(model.get("required", ()))
    rows = ["| setting | type | default | what it is |", "|---|---|---|---|"]
    for key, field in model.get("properties", {}).items():
        if only is not None and key not in only:
            continue
        default = field.get("default")
        shown = "" if default is None else f"`{str(default).lower() if isinstance(default, bool) else default}`"
        name = f"**`{key}`**" if key in required else f"`{key}`"
        about = field.get("description") or described(field, parts)
        rows.append(f"| {name} | {kind_of(field, parts)} | {shown} | {cell(about)} |")
    return rows


def kind_of(field: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    """The type of a setting in words; sections are links."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        if name == "Schema" or name not in parts:
            return "[schema](schema.md)"
        return f"[{title(name)}](#{re.sub(r'[^a-z0-9]+', '-', title(name).lower()).strip('-')})"
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    for name in ("anyOf", "oneOf"):
        if name in field:
            kinds = dict.fromkeys(kind_of(item, parts) for item in field[name] if item.get("type") != "null")
            return " or ".join(kinds)
    kind = field.get("type", "")
    if kind == "array":
        inner = kind_of(field.get("items") or next(iter(field.get("prefixItems", ())), {}), parts)
        return f"list of {inner}" if inner else "list"
    if kind == "object":
        inner = kind_of(field.get("additionalProperties") or {}, parts)
        return f"mapping to {inner}" if inner else "mapping"
    words = {"string": "text", "boolean": "true or false"}.get(kind, kind)
    return words + limits(field)


def limits(field: Mapping[str, Any]) -> str:
    """What bounds a number."""
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    found = [f"{sign} {field[name]:,}" for name, sign in signs.items() if name in field]
    return f" {', '.join(found)}" if found else ""


def described(field: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    """What the section of a setting is."""
    name = field.get("$ref", "").rpartition("/")[2]
    return said(parts[name]).partition("\n")[0] if name in parts else ""


def said(model: Mapping[str, Any]) -> str:
    """The docstring of a model, without its parameters."""
    return str(model.get("description", "")).partition("\n\nParameters\n")[0].replace("``", "`")


def cell(text: str) -> str:
    """A text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("``", "`")


def title(name: str) -> str:
    """The name of a section: ``dpdist__families__synthesis__spec__ModelSpec`` is *Model (synthesis)*."""
    family = re.match(r"dpdist__families__(\w+?)__spec__(\w+)", name)
    base = re.sub(r"Spec$", "", family[2] if family else name)
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", base).capitalize()
    return f"{words} ({family[1]})" if family else words


def reached(parts: Mapping[str, Any], name: str) -> set[str]:
    """The parts that a part leads to, and itself."""
    found, waiting = set(), [name]
    while waiting:
        part = waiting.pop()
        if part in parts and part not in found:
            found.add(part)
            waiting += re.findall(r"#/\$defs/(\w+)", str(parts[part]))
    return found


def command_page() -> str:
    """Every command with its arguments and options."""
    import typer

    from dpdist.cli.commands import app

    lines = ["# Command line", "", "This page is made from the commands. `dpdist COMMAND --help` shows the same."]
    for name, command in sorted(commands(typer.main.get_command(app), "dpdist")):
        lines += ["", f"## {name}", "", (command.help or "").replace("\f", "")]
        rows = [(usage(item), cell(getattr(item, "help", None) or "")) for item in command.params if not hidden(item)]
        if rows:
            lines += ["", "| argument | what it is |", "|---|---|", *(f"| {one} | {two} |" for one, two in rows)]
    return "\n".join(lines) + "\n"


def commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The commands below a group, by name."""
    children = getattr(command, "commands", None)
    if children is None:
        yield name, command
        return
    for child, inner in children.items():
        yield from commands(inner, f"{name} {child}")


def hidden(item: Any) -> bool:
    """Whether an option is not shown."""
    return bool(getattr(item, "hidden", False)) or item.name == "help"


def usage(item: Any) -> str:
    """An argument or option as it is written."""
    if item.param_type_name == "argument":
        return f"`{(item.metavar or item.name).upper()}`"
    names = ", ".join(item.opts + item.secondary_opts)
    return f"`{names}{'' if item.is_flag else ' ' + (item.metavar or 'VALUE')}`"
