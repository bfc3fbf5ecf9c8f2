"""Publication: parts, manifests, signatures and their verification."""
