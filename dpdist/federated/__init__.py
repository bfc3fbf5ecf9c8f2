"""Releases of records that no one may see together: sessions, signed messages, masks, and each client's own ledger."""
