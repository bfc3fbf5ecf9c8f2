"""The last import of a server of forks: no fork looks for cycles in what was imported, which would copy its pages."""

import gc

gc.collect()
gc.freeze()
