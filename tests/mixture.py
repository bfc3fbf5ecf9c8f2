"""The mixture of products that the guide to a model of one's own writes; the guide has its only copy."""

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

GUIDE = Path(__file__).parents[1] / "docs" / "how-to" / "own-model.md"
BLOCKS: list[str] = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL)

_module = ModuleType("mixture_guide")
sys.modules[_module.__name__] = _module
exec(compile(BLOCKS[0], "own-model.md", "exec", dont_inherit=True), vars(_module))  # noqa: S102  the documents are ours
MixtureOfProducts: Any = vars(_module)["MixtureOfProducts"]
fit: Any = vars(_module)["fit"]
