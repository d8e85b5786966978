"""CheckedSweeper: Hydra's basic sweeper, without a second look at jobs that are checked already."""

from __future__ import annotations

from collections.abc import Sequence

from hydra.core.plugins import Plugins

# When Hydra first loads its plugins it runs the file of this class once more, and the class that
# was there before is no base for anything.
Plugins.instance()

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper  # noqa: E402

PREFIX = "hydra_plugins.mlpkit."  # Hydra looks for sweepers and launchers under such names alone


class CheckedSweeper(BasicSweeper):
    """Hydra's basic sweeper for jobs that ``checked_jobs`` has composed and checked."""

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """Does nothing, where Hydra composes every job once more: 0.3 seconds each.

        Args:
            batch: The overrides of each job.
        """


def choose_checked() -> str:
    """Makes the sweeper known to Hydra in this process; returns the override that chooses it."""
    target = f"{PREFIX}{CheckedSweeper.__name__}"
    Plugins.instance().class_name_to_class[target] = CheckedSweeper
    return f"hydra.sweeper._target_={target}"
