"""How useful a release is, beside the table it was made from."""
