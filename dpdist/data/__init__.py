"""The distributed table: reading, checking, encoding, splitting and counting."""
