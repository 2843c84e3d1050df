"""The bytes of the local Hub's files: where they are to be sent, and how they are delivered."""

import fnmatch
import hashlib

import localhub_xet
from localhub_access import repo_of
from localhub_http import Answer, Call, Refusal, UnknownRoute, ranged
from localhub_store import Repo, git_blob_id, is_large


def resolve(call: Call, kind: str, name: str, revision: str, path: str) -> Answer:
    """A file's bytes, or for a large one where they are: at the content network, and in the Xet store if they are."""
    repo = repo_of(call, kind, name, content=True)
    commit = repo.resolve(revision)
    headers = {"X-Repo-Commit": commit.id, "Accept-Ranges": "bytes"}
    if path not in commit.files:
        raise Refusal(404, "Entry not found", "EntryNotFound", headers)
    file = commit.files[path]
    if not file.sha256:
        return ranged(call, file.data, {**headers, "ETag": f'"{git_blob_id(file.data)}"'})
    headers |= {
        "ETag": f'"{file.sha256}"',
        "X-Linked-Etag": f'"{file.sha256}"',
        "X-Linked-Size": str(file.size),
        "Location": f"{call.hub.content_url}/_cdn/{file.sha256}",
    }
    if xet_hash := call.hub.xet.hashes.get(file.sha256):
        route = f"{call.hub.url}/api/{kind}/{name}/xet-read-token/{commit.id}"
        headers |= {"X-Xet-Hash": xet_hash, "X-Xet-Refresh-Route": route, "Link": f'<{route}>; rel="xet-auth"'}
    return Answer(302, b"", headers)


def lfs_batch(call: Call, kind: str, name: str) -> Answer:
    """Where to upload the objects that are not there yet."""
    repo_of(call, kind, name, write=True)
    objects = []
    for wanted in call.json()["objects"]:
        actions = {
            "upload": {"href": f"{call.hub.content_url}/_lfs/{wanted['oid']}"},
            "verify": {"href": f"{call.hub.url}/_lfs/verify"},
        }
        there = wanted["oid"] in call.hub.large_files
        objects.append({"oid": wanted["oid"], "size": wanted["size"], **({} if there else {"actions": actions})})
    kind_of_json = {"Content-Type": "application/vnd.git-lfs+json"}
    return Answer(body={"transfer": "basic", "objects": objects}, headers=kind_of_json)


def large_file(call: Call) -> Answer:
    """The content network: presigned addresses, so without a token."""
    stored, route = call.hub.large_files, (call.method, *call.parts)
    if route == ("POST", "_lfs", "verify"):
        wanted = call.json()
        if len(stored.get(wanted["oid"], b"")) != wanted["size"]:
            raise Refusal(422, "the object is missing or has another size")
        return Answer(body={})
    if route[:2] == ("PUT", "_lfs"):
        if hashlib.sha256(call.body).hexdigest() != call.parts[1]:
            raise Refusal(400, "the content does not have this SHA-256")
        stored[call.parts[1]] = call.body
        return Answer(headers={"ETag": f'"{call.parts[1]}"'})
    if call.method == "GET" and call.parts[0] == "_cdn":
        digest = call.parts[1]
        if digest not in stored and digest in call.hub.xet.hashes:  # plain HTTP for what came in over Xet
            stored[digest] = localhub_xet.rebuilt(call.hub, digest)
        return ranged(call, stored[digest], {"ETag": f'"{digest}"'})
    raise UnknownRoute


def preupload(call: Call, repo: Repo, revision: str, _: str) -> Answer:
    """How each file is to be sent, and what it is now."""
    there, wanted = repo.resolve(revision).files, call.json()
    ignored = [line for line in (wanted.get("gitIgnore") or "").split() if not line.startswith("#")]
    modes = []
    for file in wanted["files"]:
        path = file["path"]
        mode = {
            "path": path,
            "uploadMode": "lfs" if is_large(path, file["size"]) else "regular",
            "shouldIgnore": any(fnmatch.fnmatch(path, glob) for glob in ignored),
        }
        modes.append(mode | ({"oid": there[path].sha256 or there[path].blob_id} if path in there else {}))
    return Answer(body={"files": modes})


def large_size(call: Call, digest: str, path: str) -> int:
    """The size of an object, which must have been uploaded before a commit names it."""
    if digest in call.hub.xet.hashes:
        return call.hub.xet.size(digest)
    if digest in call.hub.large_files:
        return len(call.hub.large_files[digest])
    raise Refusal(400, f"LFS pointer pointed to a file that does not exist: {path}")
