"""How far released cells are from those of the table: what is measured of it, and the intervals that follow."""
