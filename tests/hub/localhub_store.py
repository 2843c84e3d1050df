"""The repos of the local Hub: files, commits, branches and tags, all in memory."""

import fnmatch
import hashlib
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from localhub_http import Refusal

# What the Hub's default .gitattributes keeps out of git, abridged; and everything above 10 MiB.
LARGE_GLOBS = (
    "*.safetensors *.bin *.pt *.pth *.h5 *.onnx *.model *.msgpack *.parquet *.arrow *.npz *.npy *.gz *.zip *.tar *.xz "
    "*.zst *.tflite *tfevents*"
).split()
LARGE_SIZE = 10 * 2**20


def is_large(path: str, size: int) -> bool:
    """Whether the Hub stores a file outside of git."""
    return size > LARGE_SIZE or any(fnmatch.fnmatch(path.rpartition("/")[2], glob) for glob in LARGE_GLOBS)


def git_blob_id(data: bytes) -> str:
    """What git names a file's content by."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass(frozen=True)
class StoredFile:
    """A file of a commit: its bytes, or for a large one its size and the SHA-256 that its bytes are stored under."""

    data: bytes = b""
    sha256: str | None = None
    large_size: int = 0

    @property
    def size(self) -> int:
        return self.large_size if self.sha256 else len(self.data)

    @property
    def blob_id(self) -> str:
        return git_blob_id((self.sha256 or "").encode() or self.data)


@dataclass(frozen=True)
class Commit:
    id: str
    files: dict[str, StoredFile]
    title: str
    message: str
    parent: str | None
    date: str


@dataclass
class Repo:
    """A repo as the Hub makes it: one commit with a .gitattributes on the branch main."""

    kind: str  # models, datasets or spaces
    id: str
    private: bool
    gated: bool = False
    commits: dict[str, Commit] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        attributes = "".join(f"{glob} filter=lfs diff=lfs merge=lfs -text\n" for glob in LARGE_GLOBS)
        self.commit("main", {".gitattributes": StoredFile(attributes.encode())}, "initial commit")

    @property
    def owner(self) -> str:
        return self.id.partition("/")[0]

    def commit(self, branch: str, files: dict[str, StoredFile], title: str, message: str = "") -> Commit:
        """Put a commit with exactly these files on top of the branch."""
        parent = self.branches.get(branch)
        content = sorted((path, file.blob_id) for path, file in files.items())
        identity = [self.kind, self.id, content, title, message, parent, len(self.commits)]
        name = hashlib.sha1(json.dumps(identity).encode()).hexdigest()
        commit = Commit(name, dict(files), title, message, parent, _now())
        self.commits[name], self.branches[branch] = commit, name
        return commit

    def resolve(self, revision: str) -> Commit:
        """The commit that a branch, a tag or a commit's name stands for."""
        name = self.branches.get(revision) or self.tags.get(revision) or revision
        if name not in self.commits:
            raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return self.commits[name]

    def history(self, revision: str) -> list[Commit]:
        """The commit and its ancestors, newest first."""
        found = [self.resolve(revision)]
        while found[-1].parent:
            found.append(self.commits[found[-1].parent])
        return found

    def pushed_commits(self, branch: str = "main") -> list[Commit]:
        """What users committed to the branch, newest first: all but the commit that made the repo."""
        return self.history(branch)[:-1]

    def entry(self, path: str, file: StoredFile, xet_hash: str | None) -> dict[str, Any]:
        """A file as the API lists it."""
        listed: dict[str, Any] = {"type": "file", "path": path, "size": file.size, "oid": file.blob_id}
        if file.sha256:
            listed["lfs"] = {"oid": file.sha256, "sha256": file.sha256, "size": file.size, "pointerSize": 134}
            listed |= {"xetHash": xet_hash} if xet_hash else {}
        return listed


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
