"""Pure mathematics of privacy: noise, sensitivities, accounting, guarantees, the ledger of budgets."""
