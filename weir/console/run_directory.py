"""The directory of a run (``.weir/JOB``): what ``weir run`` keeps there, and who may use it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from weir.errors import AddressInUseError, ConfigError
from weir.process.locked_file import locked_file
from weir.security.private_files import private_directory

#: Of the jobs that failed or were killed earlier, the checkpoints of this many are kept.
_CHECKPOINTED_JOBS_MAX = 3


@dataclass(frozen=True)
class RunDirectory:
    """Everything that a run writes, apart from what the job's own sinks write."""

    path: Path

    @property
    def logs(self) -> Path:
        """A log per process, of all runs; bounded."""
        return self.path / "logs"

    def control_plane_settings(self) -> dict[str, str]:
        """Keys of config.json that put the control plane's files here."""
        return {
            "controlPlane.checkpoint_uri": str(self._checkpoints),
            "controlPlane.state_path": str(self.path / "control_plane.json"),
            "controlPlane.etcd_endpoints": "",
        }

    def task_manager_settings(self, number: int) -> dict[str, str]:
        """Keys of config.json that put the files of a task manager here; each has a store of its own."""
        return {
            "taskManager.rocksDBPath": str(self.path / "state" / f"{number}.db"),
            "taskManager.dead_letter_path": str(self.path / "dead_letters"),
        }

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Make it, and keep other runs away as long as this one goes on; old checkpoints are removed first.

        Raises:
            ConfigError: it cannot be made.
            AddressInUseError: another run uses it.
        """
        try:
            private_directory(self.logs)
            # Nobody wants to commit it.
            (self.path / ".gitignore").write_text("*\n")
            lock = locked_file(self.path / ".lock")
        except BlockingIOError as error:
            raise AddressInUseError(
                f"{self.path} is in use by another weir run of this job; wait for its end, or give this one a "
                "directory of its own with --keep-dir"
            ) from error
        except OSError as error:
            raise ConfigError(
                f"cannot write {error.filename}: {error.strerror}; name another with --keep-dir"
            ) from error
        with lock:
            self._remove_old_checkpoints()
            yield

    @property
    def _checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def _remove_old_checkpoints(self) -> None:
        if not self._checkpoints.is_dir():
            return
        jobs = [path for path in self._checkpoints.iterdir() if path.is_dir()]
        # A run that was killed goes on from the newest ones.
        jobs.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        for path in jobs[_CHECKPOINTED_JOBS_MAX:]:
            shutil.rmtree(path, ignore_errors=True)
