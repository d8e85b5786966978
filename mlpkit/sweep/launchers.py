"""Launchers with a process for each job, which outlive a job that is killed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra_plugins.hydra_submitit_launcher.config import (  # type: ignore[import-untyped]
    LocalQueueConf,
    SlurmQueueConf,
)
from hydra_plugins.hydra_submitit_launcher.submitit_launcher import (  # type: ignore[import-untyped]
    LocalLauncher,
    SlurmLauncher,
)

from mlpkit.sweep.sweeper import PREFIX

THREADS = "OMP_NUM_THREADS"


@dataclass
class LocalJobsConfig(LocalQueueConf):  # type: ignore[misc]
    """Options of ``hydra/launcher=submitit_local``."""

    _target_: str = f"{PREFIX}LocalJobs"
    n_jobs: int = 1  # jobs at a time; they share the cores
    timeout_min: int = 100_000  # submitit's own default ends every job after an hour
    stderr_to_stdout: bool = True
    # Ctrl-C reaches every process of the terminal. The job answers it by saving; the process that
    # started it must not, or it would kill the job a second later.
    setup: list[str] | None = field(default_factory=lambda: ["trap '' INT"])


@dataclass
class SlurmJobsConfig(SlurmQueueConf):  # type: ignore[misc]
    """Options of ``hydra/launcher=submitit_slurm``; sbatch reads what is not null."""

    _target_: str = f"{PREFIX}SlurmJobs"
    timeout_min: int = 1440  # after a day
    stderr_to_stdout: bool = True
    # a job out of time is queued again, and goes on from its last checkpoint
    max_num_timeout: int = 3


def register() -> None:
    """Puts these two in the place of submitit's own, under the same names."""
    plugins = Plugins.instance()  # loads submitit's own
    for launcher in (LocalJobs, SlurmJobs):
        plugins.class_name_to_class[f"{PREFIX}{launcher.__name__}"] = launcher
    for name, node in (("submitit_local", LocalJobsConfig), ("submitit_slurm", SlurmJobsConfig)):
        ConfigStore.instance().store(
            group="hydra/launcher", name=name, node=node, provider="mlpkit"
        )


def launch_each(
    launch: Any, jobs: Sequence[Sequence[str]], first: int, *, at_once: int
) -> list[JobReturn]:
    """Launches every job by itself, so that one without a result does not hide the others'.

    Submitit's launcher starts all jobs at once, and gives up at the first that was killed.

    Args:
        launch: The launcher's own ``launch``.
        jobs: The overrides of each.
        first: The number of the first.
        at_once: How many run at a time.
    """

    def one(number: int) -> JobReturn:
        ended: JobReturn
        try:
            (ended,) = launch([jobs[number]], first + number)
        except Exception as error:  # it was killed, or could not be started
            why = str(error).partition("\n")[0] or type(error).__name__
            print(f"mlpkit: job {first + number + 1} gave no result: {why}", file=sys.stderr)
            ended = JobReturn(overrides=jobs[number], status=JobStatus.COMPLETED)
        return ended

    pool = ThreadPoolExecutor(max_workers=at_once)
    try:
        found = list(pool.map(one, range(len(jobs))))
    except BaseException:  # a signal: nobody waits here for jobs that are told to stop elsewhere
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
    return found


class LocalJobs(LocalLauncher):  # type: ignore[misc]
    """``hydra/launcher=submitit_local``: processes on this machine, ``n_jobs`` at a time.

    Args:
        n_jobs: How many run at a time; they share the cores.
        params: Those of submitit's launcher.
    """

    def __init__(self, *, n_jobs: int = 1, **params: Any) -> None:
        super().__init__(**params)
        self.n_jobs = n_jobs
        self.visible = os.environ.get("CUDA_VISIBLE_DEVICES")

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Runs the jobs; returns what each gave."""
        with share_of_cores(self.n_jobs):
            return launch_each(super().launch, job_overrides, initial_job_idx, at_once=self.n_jobs)

    def __call__(self, *args: Any, **kwargs: Any) -> JobReturn:
        """Runs one job, in its process."""
        if not self.params.get("gpus_per_node"):  # submitit hides all that were not asked for
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
            if self.visible is not None:
                os.environ["CUDA_VISIBLE_DEVICES"] = self.visible
        ended: JobReturn = super().__call__(*args, **kwargs)
        return ended


class SlurmJobs(SlurmLauncher):  # type: ignore[misc]
    """``hydra/launcher=submitit_slurm``: Slurm jobs, ``array_parallelism`` at a time.

    Args:
        params: Those of submitit's launcher.
    """

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Runs the jobs; returns what each gave."""
        at_once = int(self.params.get("array_parallelism") or len(job_overrides))
        return launch_each(super().launch, job_overrides, initial_job_idx, at_once=at_once)

    def __call__(self, *args: Any, **kwargs: Any) -> JobReturn:
        """Runs one job, in its process; out of time, it is saved and queued again."""
        with saving_first():
            ended: JobReturn = super().__call__(*args, **kwargs)
        return ended


@contextmanager
def saving_first() -> Iterator[None]:
    """Lets training save before submitit queues a job again whose time is over.

    Submitit's answer to the warning ends the process where it is. Training answers SIGUSR1 by
    ending its step and saving; then the warning is passed on.
    """
    requeue, warned = signal.getsignal(signal.SIGUSR2), list[int]()

    def answer(number: int, frame: FrameType | None) -> None:
        trains = callable(signal.getsignal(signal.SIGUSR1))
        if trains:
            warned.append(number)
            signal.raise_signal(signal.SIGUSR1)
        elif callable(requeue):
            requeue(number, frame)

    signal.signal(signal.SIGUSR2, answer)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR2, requeue)
    if warned and callable(requeue):
        requeue(signal.SIGUSR2, None)


@contextmanager
def share_of_cores(at_once: int) -> Iterator[None]:
    """Gives the processes started inside their share of the cores, unless someone chose already."""
    if at_once < 2 or THREADS in os.environ:
        yield
        return
    os.environ[THREADS] = str(max(1, (os.cpu_count() or 1) // at_once))
    try:
        yield
    finally:
        del os.environ[THREADS]
