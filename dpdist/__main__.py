"""``python -m dpdist``."""

from dpdist.cli import main

main()
