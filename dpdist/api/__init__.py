"""The public Python API: thin, as the command line is; both call the same functions of the rooms below."""
