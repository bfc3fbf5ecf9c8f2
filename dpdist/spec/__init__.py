"""What people write: specs, schemas with their rules, contracts, and the one reader of them."""
