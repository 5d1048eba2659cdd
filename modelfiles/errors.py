"""What can be wrong with the files of a model."""


class ModelFileError(Exception):
    """A file cannot be used; the message names it, and the tensor where there is one."""
