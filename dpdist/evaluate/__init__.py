"""Is the guarantee true, and is the release useful: audits of mechanisms and evaluation of releases."""
