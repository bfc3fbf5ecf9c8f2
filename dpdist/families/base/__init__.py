"""What all families share: plans, stages, attempts, passes over the table, writing, rehearsals."""
