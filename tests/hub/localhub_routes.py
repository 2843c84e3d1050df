"""The routes of the local Hub: accounts, repos, their revisions and what is in them, and commits."""

import base64
import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

import localhub_xet
import yaml
from localhub_access import repo_of, user_of
from localhub_files import large_file, large_size, lfs_batch, preupload, resolve
from localhub_http import Answer, Call, Refusal, UnknownRoute
from localhub_store import Commit, Repo, StoredFile, git_blob_id

KINDS = ("models", "datasets", "spaces")


def answer(call: Call) -> Answer:
    """What the Hub says to a request."""
    parts, route = call.parts, (call.method, "/".join(call.parts))
    if route in GENERAL:
        return GENERAL[route](call)
    if parts[0] in ("v1", "v2", "_xorb"):
        return localhub_xet.answer(call)
    if parts[0] in ("_lfs", "_cdn"):
        return large_file(call)
    if parts[0] == "api" and parts[1] in KINDS and len(parts) >= 4:
        return _repo_api(call, parts[1], "/".join(parts[2:4]), parts[4:])
    kind = parts[0] if parts[0] in KINDS else "models"
    rest = parts[1:] if kind == parts[0] else parts
    if rest[2:] == ["info", "lfs", "objects", "batch"] and rest[1].endswith(".git"):
        return lfs_batch(call, kind, f"{rest[0]}/{rest[1].removesuffix('.git')}")
    if len(rest) >= 5 and rest[2] == "resolve":
        return resolve(call, kind, "/".join(rest[:2]), rest[3], "/".join(rest[4:]))
    raise UnknownRoute


def _whoami(call: Call) -> Answer:
    user = user_of(call, required=True)
    assert user is not None
    token = {"displayName": "test", "role": "write" if user.writes else "read"}
    auth = {"type": "access_token", "accessToken": token}
    return Answer(body={"type": "user", "name": user.name, "fullname": user.name, "orgs": [], "auth": auth})


def _validate_yaml(call: Call) -> Answer:
    """What a commit's README.md must pass: the block in front is a mapping, and a model-index has the Hub's shape."""
    block = _front_matter(call.json()["content"])
    if block is None:
        return Answer(body={"errors": [], "warnings": [{"message": "empty or missing yaml metadata in repo card"}]})
    errors = [] if isinstance(block, dict) else ["the metadata must be a mapping"]
    for index in block.get("model-index", []) if not errors else ():
        for result in index["results"]:
            for owner, key in (("task", "type"), ("dataset", "type"), ("dataset", "name")):
                errors += [f"{owner}.{key} is required"] if not result.get(owner, {}).get(key) else []
            for metric in result.get("metrics", []):
                errors += ["a metric needs type and value"] if not {"type", "value"} <= metric.keys() else []
    status = 400 if errors else 200
    return Answer(status, {"errors": [{"message": error} for error in errors], "warnings": []})


def _front_matter(card: str) -> Any:
    """The YAML block in front of a card, the only part of it that the Hub reads; None where there is none."""
    block = re.match(r"---\n(.*?)\n---\n", card, re.DOTALL)
    return yaml.safe_load(block[1]) if block else None


def _create_repo(call: Call) -> Answer:
    user, wanted = user_of(call, required=True), call.json()
    assert user is not None
    owner = wanted.get("organization") or user.name
    kind, name = f"{wanted.get('type') or 'model'}s", f"{owner}/{wanted['name']}"
    if owner != user.name or not user.writes:
        raise Refusal(403, "You don't have the rights to create a repo under this namespace")
    body = {"url": f"{call.hub.url}/{'' if kind == 'models' else kind + '/'}{name}", "name": name, "id": name}
    with call.hub.lock:
        if (kind, name) in call.hub.repos:
            return Answer(409, {"error": "You already created this repo", **body})
        private = wanted.get("visibility") == "private" or bool(wanted.get("private"))
        call.hub.repos[kind, name] = Repo(kind, name, private)
    return Answer(body=body)


def _delete_repo(call: Call) -> Answer:
    user, wanted = user_of(call, required=True), call.json()
    assert user is not None
    kind, name = f"{wanted.get('type') or 'model'}s", f"{wanted.get('organization') or user.name}/{wanted['name']}"
    del call.hub.repos[kind, repo_of(call, kind, name, write=True).id]
    return Answer(body={})


GENERAL: dict[tuple[str, str], Callable[[Call], Answer]] = {
    ("GET", "api/whoami-v2"): _whoami,
    ("POST", "api/validate-yaml"): _validate_yaml,
    ("POST", "api/repos/create"): _create_repo,
    ("DELETE", "api/repos/delete"): _delete_repo,
}


def _repo_api(call: Call, kind: str, name: str, rest: list[str]) -> Answer:
    verb, argument, below = [*rest, "", ""][0], [*rest, "", ""][1], "/".join(rest[2:])
    method = "GET" if verb == "paths-info" else call.method  # a POST that only reads
    writes = method != "GET" or verb == "xet-write-token"
    repo = repo_of(call, kind, name, write=writes, content=verb not in ("", "revision"))
    if verb in ("xet-read-token", "xet-write-token"):
        return localhub_xet.token(call)
    if (method, verb) not in REPO:
        raise UnknownRoute
    return REPO[method, verb](call, repo, argument, below)


def _info(call: Call, repo: Repo, revision: str, _: str) -> Answer:
    commit = repo.resolve(revision or "main")
    card = commit.files.get("README.md", StoredFile()).data.decode()
    data = _front_matter(card) or {}
    tags = [tag for key in ("tags", "language") for tag in _as_list(data.get(key))]
    siblings = []
    for path, file in commit.files.items():
        listed = repo.entry(path, file, None)
        details = {"size": listed["size"], "blobId": listed["oid"], "lfs": listed.get("lfs")}
        siblings.append({"rfilename": path} | (details if call.query.get("blobs") else {}))
    body = {
        "_id": "0" * 24,
        "id": repo.id,
        "modelId": repo.id,
        "author": repo.owner,
        "sha": commit.id,
        "private": repo.private,
        "gated": repo.gated,
        "disabled": False,
        "downloads": 0,
        "likes": 0,
        "tags": tags,
        "siblings": siblings,
        "createdAt": repo.history("main")[-1].date,
        "lastModified": commit.date,
        "cardData": data,
        "pipeline_tag": data.get("pipeline_tag"),
        "library_name": data.get("library_name"),
    }
    return Answer(body=body)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value] if value else []


def _settings(call: Call, repo: Repo, _: str, __: str) -> Answer:
    wanted = call.json()
    if "visibility" in wanted or "private" in wanted:
        repo.private = wanted.get("visibility") == "private" or bool(wanted.get("private"))
    repo.gated = bool(wanted.get("gated", repo.gated))
    return Answer(body={})


def _auth_check(call: Call, repo: Repo, _: str, __: str) -> Answer:
    return Answer(body={})


def _refs(call: Call, repo: Repo, _: str, __: str) -> Answer:
    def listed(names: dict[str, str], kind: str) -> list[dict[str, str]]:
        return [{"name": name, "ref": f"refs/{kind}/{name}", "targetCommit": commit} for name, commit in names.items()]

    branches, tags = listed(repo.branches, "heads"), listed(repo.tags, "tags")
    return Answer(body={"branches": branches, "tags": tags, "converts": [], "pullRequests": []})


def _tag(call: Call, repo: Repo, revision: str, _: str) -> Answer:
    return _named(repo.tags, call.json()["tag"], repo.resolve(revision))


def _branch(call: Call, repo: Repo, name: str, _: str) -> Answer:
    return _named(repo.branches, name, repo.resolve(call.json().get("startingPoint") or "main"))


def _named(names: dict[str, str], name: str, commit: Commit) -> Answer:
    if name in names:
        raise Refusal(409, f"Reference {name} already exists")
    names[name] = commit.id
    return Answer(body={})


def _delete_tag(call: Call, repo: Repo, name: str, _: str) -> Answer:
    del repo.tags[name]
    return Answer(body={})


def _delete_branch(call: Call, repo: Repo, name: str, _: str) -> Answer:
    del repo.branches[name]
    return Answer(body={})


def _commits(call: Call, repo: Repo, revision: str, _: str) -> Answer:
    keys = ("id", "title", "message", "date")
    return Answer(body=[{"authors": [], **{key: getattr(c, key) for key in keys}} for c in repo.history(revision)])


def _entries(call: Call, repo: Repo, commit: Commit) -> dict[str, dict[str, Any]]:
    """Every file and folder of a commit by its path."""
    files = {p: repo.entry(p, file, call.hub.xet.hashes.get(file.sha256 or "")) for p, file in commit.files.items()}
    folders = {path[:end] for path in files for end, character in enumerate(path) if character == "/"}
    entries = files | {p: {"type": "directory", "path": p, "size": 0, "oid": git_blob_id(p.encode())} for p in folders}
    if call.query.get("expand"):
        last = {"id": commit.id, "title": commit.title, "date": commit.date}
        entries = {path: entry | {"lastCommit": last} for path, entry in entries.items()}
    return entries


def _tree(call: Call, repo: Repo, revision: str, below: str) -> Answer:
    entries = _entries(call, repo, repo.resolve(revision))
    if below and entries.get(below, {}).get("type") != "directory":
        raise Refusal(404, f'{below} does not exist on "{revision}"', "EntryNotFound")
    start = f"{below}/" if below else ""
    recursive = call.query.get("recursive", "").lower() in ("true", "1")
    inside = [entry for path, entry in entries.items() if path.startswith(start)]
    return Answer(body=[entry for entry in inside if recursive or "/" not in entry["path"][len(start) :]])


def _paths_info(call: Call, repo: Repo, revision: str, _: str) -> Answer:
    entries = _entries(call, repo, repo.resolve(revision))
    as_json = "json" in call.headers.get("Content-Type", "")
    wanted = call.json() if as_json else parse_qs(call.body.decode())
    return Answer(body=[entries[path] for path in wanted["paths"] if path in entries])


def _commit(call: Call, repo: Repo, branch: str, _: str) -> Answer:
    """One commit from lines of JSON: a header, then one operation a line; all of it or nothing."""
    header, *operations = (json.loads(line) for line in call.body.splitlines() if line.strip())
    with call.hub.lock:
        base = repo.resolve(branch)
        if header["value"].get("parentCommit") not in (None, base.id):
            raise Refusal(412, "A commit has happened since. Please refresh and try again.")
        files = dict(base.files)
        for operation in operations:
            key, value = operation["key"], operation["value"]
            path = value["path"]
            if key == "file":
                files[path] = StoredFile(base64.b64decode(value["content"]))
            elif key == "lfsFile":
                files[path] = StoredFile(sha256=value["oid"], large_size=large_size(call, value["oid"], path))
            elif key in ("deletedFile", "deletedFolder"):
                below = path.rstrip("/") + "/"
                files = {name: file for name, file in files.items() if name != path and not name.startswith(below)}
            else:
                raise UnknownRoute
        made = repo.commit(branch, files, header["value"]["summary"], header["value"].get("description", ""))
    kind = "" if repo.kind == "models" else f"{repo.kind}/"
    url = f"{call.hub.url}/{kind}{repo.id}/commit/{made.id}"
    return Answer(body={"success": True, "commitOid": made.id, "commitUrl": url, "hookOutput": ""})


REPO: dict[tuple[str, str], Callable[[Call, Repo, str, str], Answer]] = {
    ("GET", ""): _info,
    ("GET", "revision"): _info,
    ("PUT", "settings"): _settings,
    ("GET", "auth-check"): _auth_check,
    ("GET", "refs"): _refs,
    ("POST", "tag"): _tag,
    ("DELETE", "tag"): _delete_tag,
    ("POST", "branch"): _branch,
    ("DELETE", "branch"): _delete_branch,
    ("GET", "commits"): _commits,
    ("GET", "tree"): _tree,
    ("GET", "paths-info"): _paths_info,
    ("POST", "preupload"): preupload,
    ("POST", "commit"): _commit,
}
