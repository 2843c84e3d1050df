"""A disk that is full, read-only or gone, in one sentence: what could not be written, why, and what to do."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from vanilla_transformer.configuration.errors import UserError


class WriteError(UserError):
    """The file system refused; what was there before is untouched.

    `happened` is the sentence that says what and why; the message adds what the user can do.
    """

    def __init__(self, happened: str, advice: str):
        super().__init__(f"{happened} {advice}")
        self.happened = happened


@contextmanager
def explained(what: str, advice: str) -> Iterator[None]:
    """Raise an error of the file system as "`what` could not be written: why. `advice`"; other errors pass."""
    try:
        yield
    except WriteError:
        raise
    except Exception as error:
        if (why := _why(error)) is None:
            raise
        raise WriteError(f"{what} could not be written: {why}.", advice) from error


def _why(error: Exception) -> str | None:
    """The system's words for an error of the file system, None for any other error."""
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        return f"{reason} ({error.filename})" if error.filename else reason
    # safetensors and tokenizers, written in Rust, raise classes of their own that only tell it in their text.
    number = re.search(r"\(os error (\d+)\)", str(error))
    return os.strerror(int(number[1])) if number else None
