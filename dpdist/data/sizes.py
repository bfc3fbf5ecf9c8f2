"""Sizes that plans and readers share; this module imports nothing."""

from __future__ import annotations

BATCH_ROWS = 1 << 17
"""Rows of a batch; of CSV, as many bytes as about so many rows have."""

MOST_TEXT_BYTES = 200
"""Longest text (UTF-8) that a discovery looks at."""
