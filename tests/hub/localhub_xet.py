"""The Xet side of the local Hub: a content-addressed store, as hf_xet 1.8 speaks to it.

A file is cut into chunks; a xorb holds many of them; a shard says which chunks of which xorbs make up each file.
"""

import re
import struct
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localhub_http import Answer, Call, Refusal, UnknownRoute, ranged

if TYPE_CHECKING:
    from localhub import LocalHub

TOKEN = "xet"  # short-lived and the store's own; the user's token never comes here
ENTRY_BYTES, HASH_BYTES = 48, 32
# Flags of a file's entry in a shard, and what ends the list of files.
HAS_VERIFICATION, HAS_METADATA = 0x80000000, 0x40000000
END_OF_FILES = b"\xff" * HASH_BYTES
# What a client asks first and can do without: streamed shards, newer reconstructions, presigned and shared uploads.
NOT_OFFERED = re.compile(r"v2/(shards|reconstructions/.*)|v1/(chunks|get_xorb|xorb-grants)/.*")


@dataclass(frozen=True)
class Term:
    """Chunks `first` to `last` (exclusive) of a xorb, `size` bytes unpacked."""

    xorb: str
    size: int
    first: int
    last: int


@dataclass
class XetStore:
    """xorbs by hash, each file's terms by the file's Xet hash, and that hash by the file's SHA-256."""

    xorbs: dict[str, bytes] = field(default_factory=dict)
    files: dict[str, list[Term]] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)

    def size(self, sha256: str) -> int:
        return sum(term.size for term in self.files[self.hashes[sha256]])

    def add_shard(self, shard: bytes) -> None:
        """Read the file section: header of 48 bytes, then for each file its entry, its terms, and what flags say."""
        at = ENTRY_BYTES
        while (name := shard[at : at + HASH_BYTES]) != END_OF_FILES:
            flags, count = struct.unpack_from("<II", shard, at + HASH_BYTES)
            at += ENTRY_BYTES
            terms = []
            for start in range(at, at + ENTRY_BYTES * count, ENTRY_BYTES):
                size, first, last = struct.unpack_from("<III", shard, start + HASH_BYTES + 4)
                terms.append(Term(_hex(shard[start : start + HASH_BYTES]), size, first, last))
            at += ENTRY_BYTES * count * (2 if flags & HAS_VERIFICATION else 1)
            if flags & HAS_METADATA:  # the SHA-256
                self.hashes[_hex(shard[at : at + HASH_BYTES])] = _hex(name)
                at += ENTRY_BYTES
            self.files[_hex(name)] = terms


def _hex(name: bytes) -> str:
    """A hash as Xet prints it: four little-endian words."""
    return b"".join(name[i : i + 8][::-1] for i in range(0, HASH_BYTES, 8)).hex()


def token(call: Call) -> Answer:
    """The access that a repo's reader or writer gets to the store."""
    expires = int(time.time()) + 3600
    headers = {
        "X-Xet-Cas-Url": call.hub.url,
        "X-Xet-Access-Token": TOKEN,
        "X-Xet-Token-Expiration": str(expires),
    }
    return Answer(body={"casUrl": call.hub.url, "accessToken": TOKEN, "exp": expires}, headers=headers)


def answer(call: Call) -> Answer:
    """What the store says to a request."""
    store, parts, route = call.hub.xet, call.parts, "/".join(call.parts)
    if parts[0] == "_xorb":  # a presigned address, so without a token
        return ranged(call, store.xorbs[parts[1]], {})
    if call.headers.get("Authorization") != f"Bearer {TOKEN}":
        raise Refusal(401, "not a token of the Xet store")
    if NOT_OFFERED.fullmatch(route):
        raise Refusal(404, "not offered by this store")
    if call.method == "POST" and parts[:2] == ["v1", "xorbs"]:
        new = parts[3] not in store.xorbs
        store.xorbs[parts[3]] = call.body
        return Answer(body={"was_inserted": new})
    if (call.method, route) == ("POST", "v1/shards"):
        store.add_shard(call.body)
        return Answer(body={"result": 1})
    if call.method == "GET" and parts[:2] == ["v1", "reconstructions"] and parts[2] in store.files:
        return _reconstruction(call, store.files[parts[2]])
    raise UnknownRoute


def _reconstruction(call: Call, terms: Sequence[Term]) -> Answer:
    """Which ranges of which xorbs to fetch, from the file's byte that a Range header begins with."""
    match = re.match(r"bytes=(\d+)-", call.headers.get("Range", ""))
    start = int(match[1]) if match else 0
    if start >= sum(term.size for term in terms):
        return Answer(416)
    fetch: dict[str, list[dict[str, Any]]] = {}
    for name in {term.xorb for term in terms}:
        offsets = _chunk_offsets(call.hub.xet.xorbs[name])
        fetch[name] = [
            {
                "range": {"start": first, "end": last},
                "url": f"{call.hub.url}/_xorb/{name}",
                "url_range": {"start": offsets[first], "end": offsets[last] - 1},
            }
            for first, last in _merged(sorted((term.first, term.last) for term in terms if term.xorb == name))
        ]
    listed = [
        {"hash": term.xorb, "unpacked_length": term.size, "range": {"start": term.first, "end": term.last}}
        for term in terms
    ]
    return Answer(body={"offset_into_first_range": start, "fetch_info": fetch, "terms": listed})


def _merged(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans that touch made one: a repetitive file names one chunk many times."""
    merged: list[tuple[int, int]] = []
    for first, last in spans:
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


def _chunk_offsets(xorb: bytes) -> list[int]:
    """Where each chunk begins; every one has a header of 8 bytes with its packed length in bytes 1 to 3."""
    offsets, at = [0], 0
    while at + 8 <= len(xorb) and xorb[at : at + 7] != b"XETBLOB":
        at += 8 + int.from_bytes(xorb[at + 1 : at + 4], "little")
        offsets.append(at)
    return offsets


def rebuilt(hub: "LocalHub", sha256: str) -> bytes:
    """A file's bytes, for clients without Xet; hf_xet itself does the decoding, over this Hub's own HTTP."""
    import hf_xet

    wanted = hf_xet.XetFileInfo(hub.xet.hashes[sha256], hub.xet.size(sha256))
    access = {"endpoint": hub.url, "token": TOKEN, "token_expiry_unix_secs": int(time.time()) + 3600}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file")
        with hf_xet.XetSession().new_file_download_group(**access) as group:
            group.start_download_file(wanted, str(path))
        return path.read_bytes()
