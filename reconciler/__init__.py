"""A git repo of YAML says what LLM inference runs on a fleet of GPU machines; this makes it so."""

__version__ = "0.1.0"
"""Equal to pyproject.toml's (a test holds it); here so that `--version` reads no metadata."""
