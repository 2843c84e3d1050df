"""Who asks, and what they may do: tokens, private and gated repos, in the words of the real Hub."""

from typing import NamedTuple

from localhub_http import Call, Refusal
from localhub_store import Repo


class User(NamedTuple):
    """Whose token it is, and whether it may write."""

    name: str
    writes: bool


def user_of(call: Call, required: bool = False) -> User | None:
    token = call.headers.get("Authorization", "").removeprefix("Bearer ").strip()
    if token and token not in call.hub.tokens:
        raise Refusal(401, "Invalid credentials in Authorization header")
    if required and not token:
        raise Refusal(401, "Invalid username or password.")
    return call.hub.tokens.get(token)


def repo_of(call: Call, kind: str, name: str, write: bool = False, content: bool = False) -> Repo:
    """The repo, if this user may do that with it; the Hub never says that a private one exists."""
    user, repo = user_of(call), call.hub.repos.get((kind, name))
    mine = repo is not None and user is not None and user.name == repo.owner
    if repo is None or (repo.private and not mine):
        if user:
            raise Refusal(404, "Repository not found", "RepoNotFound")
        raise Refusal(401, "Invalid username or password.", "RepoNotFound")
    if write and not (mine and user is not None and user.writes):
        raise Refusal(403, f"Forbidden: you must have write access to {name}")
    if content and repo.gated and not mine:
        raise Refusal(403 if user else 401, f"Access to {name} is restricted.", "GatedRepo")
    return repo
