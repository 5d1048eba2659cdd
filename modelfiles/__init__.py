"""A model on disk: what the headers of its files say, and digests of what is in them. No torch."""
