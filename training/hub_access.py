"""Why a repo of the Hub cannot be read, in one sentence that says what to do and never shows a token.

The libraries above the Hub's client give one error for different answers, and often hide what it was. So after an error
the Hub itself is asked, once.
"""

from typing import Literal

from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import validate_repo_id

_LOGIN = "log in with `hf auth login`, or set HF_TOKEN"


def reading_problem(kind: Literal["dataset", "model"], repo_id: str, revision: str | None = None) -> str | None:
    """What keeps this user from reading the repo, or None where the Hub says that nothing does."""
    api = HfApi()
    what = f"Hub {'data set' if kind == 'dataset' else 'model'} {repo_id}"
    try:
        validate_repo_id(repo_id)
        api.auth_check(repo_id, repo_type=kind)
        if revision is not None:
            api.repo_info(repo_id, revision=revision, repo_type=kind)
    except HFValidationError:
        return f"{what}: no repo can have this name; a Hub id is name or owner/name."
    except OfflineModeIsEnabled:
        return f"{what}: not in the cache, and HF_HUB_OFFLINE keeps the Hub out of reach; unset it, or give a folder."
    except RevisionNotFoundError:
        return f"{what}: has no revision {revision}; give a branch, a tag or a commit of it."
    except HfHubHTTPError as error:
        return _refusal(what, f"{api.endpoint}/{'datasets/' if kind == 'dataset' else ''}{repo_id}", error)
    except (HTTPError, OSError) as error:
        return (
            f"{what}: {api.endpoint} cannot be reached ({type(error).__name__}), and there is no copy in the cache. "
            "Check the network and HF_ENDPOINT, or give a folder."
        )
    return None


def _refusal(what: str, page: str, error: HfHubHTTPError) -> str | None:
    status, known = error.response.status_code, get_token() is not None
    if isinstance(error, GatedRepoError):  # before the next one, of which it is a kind
        has = "the account of the token in use has no access to it" if known else "nobody is logged in"
        return f"{what}: gated, and {has}; ask for access on {page}" + ("." if known else f", then {_LOGIN}.")
    if isinstance(error, RepositoryNotFoundError):
        private = f"private and {'not for the token in use' if known else 'nobody is logged in'}"
        return f"{what}: does not exist, or is {private}; check the name, or {_LOGIN}."
    if status == 401:
        return f"{what}: the Hub refuses the token in use, it is wrong or has expired; {_LOGIN} to a new one."
    if status == 403:
        return f"{what}: the token in use may not read it; give it that right, or {_LOGIN} to another one."
    if status == 429 or status >= 500:
        return f"{what}: the Hub is busy or out of order (it answers {status}); try again later."
    return None  # a mirror without this question
