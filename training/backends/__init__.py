"""Models behind the ``Policy`` protocol, one module a source of models."""
