"""The shipped configuration; Hydra looks for a package here."""
