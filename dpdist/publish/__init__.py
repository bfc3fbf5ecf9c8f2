"""Publication: stores, parts, manifests, signatures and their verification."""
