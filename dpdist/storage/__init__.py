"""Local folders and S3: reading, writing once, and what went wrong."""
