"""Errors that a user can mend: one clear message, an exit code, never a traceback."""


class UserError(Exception):
    """A mistake of the user's or a fault of their environment; the command line prints it, exits with `exit_code`."""

    exit_code = 1


class UsageError(UserError):
    """A wrong flag, recipe key or value, found before any work was done."""

    exit_code = 2


class CorpusError(UserError):
    """Data that cannot be used; the message names the file and the line."""


def problems_error(what: str, problems: list[str], error: type[UserError] = UsageError) -> UserError:
    """One error that lists every problem of `what`, a line each."""
    count = f"{len(problems)} problem" + ("s" if len(problems) != 1 else "")
    return error("\n".join([f"{what}: {count}", *(f"  {problem}" for problem in problems)]))
