"""Is the guarantee true, and is the release useful?"""
