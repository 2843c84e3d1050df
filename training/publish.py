"""From a model folder to the Hub: one commit for one push, never two, and done only when all of it has arrived.

huggingface_hub's own `upload_folder` sends a commit again when its answer is lost, which makes a second one; Trainer
hides a push that failed. Here the commit names its parent, so the Hub itself refuses a second one, and whatever is not
known after an error is looked up before anything is sent again.
"""

import filecmp
import glob
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

from huggingface_hub import CommitOperationAdd, HfApi, ModelCard, get_token
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    OfflineModeIsEnabled,
    RevisionNotFoundError,
)
from huggingface_hub.utils import validate_repo_id

from vanilla_transformer.configuration.errors import UsageError, UserError
from vanilla_transformer.training.benchmark_results import EVAL_RESULTS, write_eval_results
from vanilla_transformer.training.card import CARD, write_card
from vanilla_transformer.training.durable import sha256
from vanilla_transformer.training.model_facts import read_facts
from vanilla_transformer.training.redaction import redacted

Answer = TypeVar("Answer")

# Seconds before each new try of a request that failed on the way.
WAITS = (1.0, 2.0, 4.0, 8.0)
# Answers of a Hub that is busy or out of reach: the same request may succeed later.
PASSING = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class Pushed:
    """What lies on the Hub after a push: `commit` of `repo` holds `files`, and `url` shows it."""

    repo: str
    commit: str
    url: str
    files: list[str]
    tag: str | None = None


def push(
    folder: str | os.PathLike[str],
    repo_id: str,
    *,
    private: bool = False,
    tag: str | None = None,
    revision: str | None = None,
    license: str | None = None,
) -> Pushed:
    """Render the folder's model card, upload the folder in one commit, and check what the Hub then delivers.

    A repo that does not exist is made, `private` or public; so is the branch `revision` (default: main). `tag` names
    the new commit. `license` of the weights goes into the card and stays there. Files that others put into the repo
    are left alone, hidden files are not sent, and a folder whose content is there already makes no commit. The token
    is that of HF_TOKEN or `hf auth login`.

    Raises UserError in one sentence where anything was not delivered, UsageError for names that cannot be.
    """
    folder = _model_folder(Path(folder))
    require_target(repo_id)
    api = HfApi(library_name="vanilla-transformer", library_version=version("vanilla-transformer"))
    with _explained(api, repo_id):
        repo_id = _open_repo(api, repo_id, private, revision)
        tagged = _tags(api, repo_id).get(tag) if tag else None
        facts = read_facts(folder)
        write_card(facts, repo_id, license)
        write_eval_results(facts, api)
        ModelCard.load(folder / CARD).validate()
        files = _files(folder)
        commit = _commit_once(api, repo_id, revision, folder, files, tagged)
        _verify(api, repo_id, commit, folder, files)
        if tag and not tagged:
            _tag(api, repo_id, tag, commit)
    return Pushed(repo_id, commit, f"{api.endpoint}/{repo_id}/commit/{commit}", files, tag)


def require_target(repo_id: str) -> None:
    """Raise what a push would meet at once, before the work whose result is to be pushed.

    UsageError for a name that no repo can have, UserError where there is no token.
    """
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise UsageError(f"{repo_id} is no name of a repo; write it as org/name. ({_first_line(error)})") from None
    if get_token() is None:
        raise UserError(
            f"push needs a token that may write to {repo_id}, and there is none: run `hf auth login`, or set HF_TOKEN."
        )


def _model_folder(folder: Path) -> Path:
    if (folder / "config.json").is_file():
        return folder
    hint = f"; did you mean {folder / 'final'}?" if (folder / "final" / "config.json").is_file() else "."
    raise UserError(f"{folder} is not a model folder: it has no config.json{hint}")


def _files(folder: Path) -> list[str]:
    """Names of the files to send, relative to the folder; hidden ones only in the folder of evaluation results."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return [name for name in names if name.startswith(f"{EVAL_RESULTS}/") or not re.search(r"(^|/)\.", name)]


def _open_repo(api: HfApi, repo_id: str, private: bool, revision: str | None) -> str:
    """Make the repo and the branch where they are missing; returns the repo's full name."""
    repo_id = _retried(lambda: api.create_repo(repo_id, private=private, exist_ok=True)).repo_id
    if private and not _retried(lambda: api.repo_info(repo_id)).private:
        raise UserError(
            f"{repo_id} exists and is public, so --private cannot hide what is pushed to it; make it private in its "
            "settings first, or choose another name."
        )
    if revision is not None:
        _retried(lambda: api.create_branch(repo_id, branch=revision, exist_ok=True))
    return repo_id


def _commit_once(
    api: HfApi, repo_id: str, revision: str | None, folder: Path, files: Sequence[str], expected: str | None
) -> str:
    """The commit that holds the files: the one made here, or the branch's newest where it has all of them already.

    `expected` is the commit of the tag that is to be set, where it exists: a push that would need another commit is
    refused before anything is sent.
    """
    head = str(_retried(lambda: api.repo_info(repo_id, revision=revision)).sha)
    if expected is not None:
        if expected != head or _differing(api, repo_id, head, folder, files):
            raise UserError(
                f"The tag exists already on {repo_id}, at another content (commit {expected[:8]}); choose a new tag."
            )
        return head
    additions = [CommitOperationAdd(name, folder / name) for name in files]
    api.preupload_lfs_files(repo_id, additions, revision=revision, free_memory=False)
    content = hashlib.sha256()
    for name in files:
        content.update(f"{name} {sha256(folder / name)}\n".encode())
    # Found again in the history when the answer to the commit is lost.
    mark = f"Content: sha256 {content.hexdigest()}"

    def commit() -> str:
        try:
            return api.create_commit(
                repo_id,
                additions,
                commit_message=f"Model pushed by vanilla-transformer {version('vanilla-transformer')}",
                commit_description=mark,
                revision=revision,
                parent_commit=head,
            ).oid
        except Exception:
            made = _commit_since(api, repo_id, revision, head, mark)
            if made is None:
                raise
            return made

    return _retried(commit)


def _commit_since(api: HfApi, repo_id: str, revision: str | None, head: str, mark: str) -> str | None:
    """The commit after `head` that bears the mark, if there is one."""
    for commit in api.list_repo_commits(repo_id, revision=revision):
        if commit.commit_id == head:
            return None
        if mark in commit.message:
            return commit.commit_id
    return None


def _differing(api: HfApi, repo_id: str, commit: str, folder: Path, files: Sequence[str]) -> list[str]:
    """Files that the commit lacks, or lists with another checksum than they have here."""
    found = api.verify_repo_checksums(repo_id, revision=commit, local_dir=folder)
    return sorted({*found.extra_paths, *(mismatch["path"] for mismatch in found.mismatches)} & {*files})


def _verify(api: HfApi, repo_id: str, commit: str, folder: Path, files: Sequence[str]) -> None:
    """Compare the checksums that the Hub lists, then download the commit and compare what is delivered.

    The list alone does not do: a file of the right name and size with other bytes in it is delivered without a word.
    """
    wrong = _differing(api, repo_id, commit, folder, files)
    if not wrong:
        with tempfile.TemporaryDirectory(prefix="vanilla-transformer-push-") as copy:
            patterns = [glob.escape(name) for name in files]
            api.snapshot_download(repo_id, revision=commit, local_dir=copy, allow_patterns=patterns)
            wrong = [name for name in files if not _same(folder / name, Path(copy, name))]
    if wrong:
        raise UserError(
            f"{repo_id} has the new commit {commit[:8]}, but the Hub does not deliver what was sent: "
            f"{', '.join(wrong)} {'differs' if len(wrong) == 1 else 'differ'}. Push again; should that not help, "
            "delete the files on the Hub first."
        )


def _same(sent: Path, delivered: Path) -> bool:
    return delivered.is_file() and filecmp.cmp(sent, delivered, shallow=False)


def _tags(api: HfApi, repo_id: str) -> dict[str, str]:
    return {tag.name: tag.target_commit for tag in _retried(lambda: api.list_repo_refs(repo_id)).tags}


def _tag(api: HfApi, repo_id: str, tag: str, commit: str) -> None:
    _retried(lambda: api.create_tag(repo_id, tag=tag, revision=commit, exist_ok=True))
    there = _tags(api, repo_id).get(tag)
    if there != commit:
        raise UserError(f"{repo_id}: everything was pushed, but the tag {tag} is at {there}, not at {commit}.")


def _retried(action: Callable[[], Answer]) -> Answer:
    """The answer of something that may be tried any number of times, once a passing fault is over.

    For requests that huggingface_hub itself sends once only.
    """
    for wait in WAITS:
        try:
            return action()
        except Exception as error:
            if not _is_passing(error):
                raise
        time.sleep(wait)
    return action()


def _is_passing(error: Exception) -> bool:
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in PASSING
    return isinstance(error, HTTPError | ConnectionError) and not isinstance(error, OfflineModeIsEnabled)


@contextmanager
def _explained(api: HfApi, repo_id: str) -> Iterator[None]:
    """Turn what huggingface_hub raises into one sentence that says what to do, without the token."""
    try:
        yield
    except HFValidationError as error:
        raise UsageError(f"{repo_id} is no name of a repo; write it as org/name. ({_first_line(error)})") from None
    except ValueError as error:  # the check of the card's metadata
        raise UserError(f"{repo_id} was not pushed: {redacted(' '.join(str(error).split()))}") from None
    except OfflineModeIsEnabled:
        raise UserError("push needs the Hub, and HF_HUB_OFFLINE is set; unset it.") from None
    except RevisionNotFoundError as error:
        raise UserError(f"{repo_id} has no branch to push to. ({_first_line(error)})") from None
    except HfHubHTTPError as error:
        raise UserError(_refusal(api, repo_id, error)) from None
    except (HTTPError, OSError, RuntimeError) as error:
        raise UserError(f"{repo_id} was not pushed; {api.endpoint} cannot be used: {_first_line(error)}") from error


def _refusal(api: HfApi, repo_id: str, error: HfHubHTTPError) -> str:
    status, said = error.response.status_code, _first_line(error.server_message or error)
    if status == 401:
        known = {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"} & os.environ.keys()
        source = f"in {min(known)}" if known else "saved by `hf auth login`"
        return f"{api.endpoint} does not accept the token {source}: it is wrong or has expired. ({said})"
    if status == 403:
        return f"The token may not write to {repo_id}: it is read-only, or of somebody without that right. ({said})"
    if status == 412:
        return f"{repo_id} was changed by somebody else during the push, and nothing was written; push again. ({said})"
    return f"{repo_id} was not pushed; {api.endpoint} answered {status}: {said}"


def _first_line(error: object) -> str:
    return redacted((str(error).strip() or type(error).__name__).splitlines()[0])
