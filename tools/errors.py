"""Errors whose text is all the reader needs: what is wrong and what to do."""


class SetupError(Exception):
    """Something on this machine has to change before the command can run."""
