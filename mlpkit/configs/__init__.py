"""Dataclass schemas of the built-ins and of a run; no torch."""
