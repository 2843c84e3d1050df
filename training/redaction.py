"""Tokens and passwords stay out of files, logs and messages.

They are refused where they would come in, in a command line or a recipe, since a run keeps and shows both; and they are
masked where a message goes out, since libraries put addresses and headers into theirs.
"""

import logging
import os
import re
import traceback
from typing import Any

# A Hub token, and what stands before the host of an address (one slash: pathlib has taken the other).
_HUB_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{20,}")
_LOGIN_IN_ADDRESS = re.compile(r"\b([a-z][a-z0-9+.-]*:/{1,2})[^/\s@]+@", re.IGNORECASE)
# Variables that hold secrets of the services a run may talk to: the Hub and trackers.
_SECRET_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACEHUB_API_TOKEN", "WANDB_API_KEY", "COMET_API_KEY")
_SHORTEST_SECRET = 8  # "test" or "none" in such a variable is no secret, and masking it would spoil other text

ADVICE = (
    "holds a token or password, which the run would keep and show; take it out, and log in with `hf auth login` or "
    "the variable HF_TOKEN"
)


def redacted(text: str) -> str:
    """`text` with every Hub token, login in an address, and value of a variable that holds a secret masked."""
    for name in _SECRET_VARIABLES:
        secret = os.environ.get(name, "").strip()
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, "***")
    return _LOGIN_IN_ADDRESS.sub(r"\1***@", _HUB_TOKEN.sub("hf_***", text))


def holds_secret(text: str) -> bool:
    """Whether `redacted` would mask a part of the text."""
    return redacted(text) != text


class RedactedRecord(logging.LogRecord):
    """A log record whose message and traceback hold no secrets; for logging.setLogRecordFactory.

    The libraries have loggers and handlers of their own, and some of them log the addresses that they ask.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if self.exc_info and self.exc_info[0]:  # handlers take this text where it is there already
            self.exc_text = redacted("".join(traceback.format_exception(*self.exc_info)).rstrip("\n"))

    def getMessage(self) -> str:
        return redacted(super().getMessage())
