"""The README of the wheel: its links lead to the sources, wherever a package index shows it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Readme(MetadataHookInterface):
    """Gives the README absolute links."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the README."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        source = metadata["urls"]["Source"]
        links = re.sub(r"(?<=\]\()(?!\w+:|#)", f"{source}/", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": links}
