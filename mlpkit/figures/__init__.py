"""Pictures in one style: curves of a run."""
