"""One run at a time in a folder: a lock that ends with its process, and proof that the folder is still the run's."""

import errno
import fcntl
import logging
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.training.durable import is_at
from vanilla_transformer.training.write_errors import WriteError, explained

logger = logging.getLogger(__name__)

LOCK = ".lock"
# What flock says on a file system without locks, such as Lustre not mounted with `flock` or NFS without a lock daemon.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class FolderLock:
    """A folder that this process alone writes to. Made by `locked`.

    Both descriptors stay open: they say which folder and which lock were meant, whatever lies under their names later.
    """

    def __init__(self, path: Path):
        self._path = path
        self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        self._lock = _take(path)

    def require(self) -> None:
        """Raise WriteError where the folder was deleted or replaced, UserError where another run has taken it over.

        A lock that somebody has deleted is taken again. A deleted folder is not made again: whoever deleted it wanted
        it gone, and one that has only lost its mount comes back by itself.
        """
        with explained(f"The run's folder {self._path}", "Mend it, then continue with --resume."):
            if not is_at(self._folder, self._path):
                raise WriteError(
                    f"The run's folder {self._path} was deleted or replaced while the run was writing to it.",
                    "Nothing more is written there.",
                )
            if not is_at(self._lock, self._path / LOCK):
                lock = _take(self._path)
                os.close(self._lock)
                self._lock = lock
                logger.warning(f"{self._path / LOCK} was deleted and is made again: it keeps a second run out.")

    def close(self) -> None:
        for descriptor in (self._lock, self._folder):
            os.close(descriptor)


@contextmanager
def locked(path: Path) -> Iterator[FolderLock]:
    """Hold the folder, made where it is missing, for this process alone; UserError when another run holds it.

    The lock is the kernel's and ends with the process, however it dies; the file .lock only says who it was. On a file
    system without locks that file is all there is, and only a process of this machine is recognised by it.
    """
    with explained(f"The output folder {path}", "Choose another one, or mend it."):
        path.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(path)
    # Data workers are forked, would share the lock, and may outlive a killed run by seconds.
    held = [lock]
    os.register_at_fork(after_in_child=lambda: held.pop().close() if held else None)
    try:
        yield lock
    finally:
        held.pop().close()


def _take(folder: Path) -> int:
    """The descriptor of the lock file, locked; UserError when another run holds it, OSError where none can be made."""
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        holder = os.read(descriptor, 200).decode(errors="replace").strip()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _taken(folder, holder or "process unknown") from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            if _is_running_here(holder):
                raise _taken(folder, f"{holder}; if that is no training, delete {folder / LOCK}") from None
            logger.warning(
                f"The file system of {folder} has no locks ({error.strerror}): see to it yourself that no second run "
                "writes there from another machine."
            )
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _taken(folder: Path, holder: str) -> UserError:
    return UserError(
        f"Another run is writing to {folder} ({holder}). Wait for it to end, or give this one another folder."
    )


def _is_running_here(holder: str) -> bool:
    """Whether the process named in a lock file is another one on this machine that has not ended."""
    named = re.fullmatch(r"process (\d+) on (.*)", holder)
    if named is None or named[2] != socket.gethostname() or int(named[1]) == os.getpid():
        return False
    try:
        os.kill(int(named[1]), 0)
    except ProcessLookupError:
        return False
    except OSError:  # it runs under another user
        return True
    return True
