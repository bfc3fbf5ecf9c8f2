"""How large a cluster a release needs, and how long it takes."""
