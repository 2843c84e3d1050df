import hashlib
import json
import os
import shutil

import pytest

from vanilla_transformer.training import durable
from vanilla_transformer.training.durable import delete_folder, fault, recover, whole_folder, write_json, write_manifest


class Killed(BaseException):
    """Stands for a process that dies at this point: no handler may tidy up after it."""


def folder_with(path, **files):
    with whole_folder(path) as temporary:
        for name, text in files.items():
            (temporary / name).write_text(text)
        write_manifest(temporary, step=1)
    return path


def test_the_manifest_holds_size_and_sha256_of_each_file(tmp_path):
    folder = folder_with(tmp_path / "step-1", weights="abc", state="")
    # FIPS 180-2, appendix B.1: SHA-256 of "abc"
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["files"]["weights"] == {"size": 3, "sha256": digest}
    assert manifest["files"]["state"] == {"size": 0, "sha256": hashlib.sha256(b"").hexdigest()}
    assert manifest["step"] == 1
    assert fault(folder) is None


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda folder: (folder / "weights").write_text("abd"), "weights differs from its recorded SHA-256"),
        (lambda folder: (folder / "weights").write_text("ab"), "weights has 2 bytes instead of 3"),
        (lambda folder: (folder / "weights").unlink(), "weights is missing"),
        (lambda folder: (folder / "manifest.json").unlink(), "it has no manifest.json"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "its manifest.json cannot be read"),
        (lambda folder: (folder / "manifest.json").write_text("[]"), "its manifest.json cannot be read"),
        (lambda folder: (folder / "manifest.json").write_text("[" * 100_000), "its manifest.json cannot be read"),
        (lambda folder: (folder / "manifest.json").write_bytes(b"\xff\xfe"), "its manifest.json cannot be read"),
        (lambda folder: relist(folder, size=float("inf")), "its manifest.json cannot be read"),
        (lambda folder: relist(folder, size=None), "its manifest.json cannot be read"),
        (lambda folder: [path.unlink() for path in folder.iterdir()], "it has no manifest.json"),
    ],
)
def test_damage_is_named(tmp_path, damage, reason):
    folder = folder_with(tmp_path / "step-1", weights="abc")
    damage(folder)
    assert fault(folder) == reason


def relist(folder, name="weights", **entry):
    """Change what the manifest says about the weights."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][name] = {**manifest["files"].pop("weights"), **entry}
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("outside", ["../secret", "a/../../secret", "{absolute}"])
def test_a_manifest_does_not_lead_out_of_its_folder(tmp_path, outside):
    # The file that it points to is there and has the recorded size and hash.
    (tmp_path / "secret").write_text("abc")
    folder = folder_with(tmp_path / "step-1", weights="abc")
    name = outside.format(absolute=tmp_path / "secret")
    relist(folder, name)
    assert fault(folder) == f"its manifest.json names a file outside the folder, {name}"


def test_sizes_alone_are_compared_where_nothing_is_to_be_read(tmp_path):
    folder = folder_with(tmp_path / "step-1", weights="abc")
    (folder / "weights").write_text("abd")
    assert fault(folder, read=False) is None
    (folder / "weights").write_text("ab")
    assert fault(folder, read=False) == "weights has 2 bytes instead of 3"


def test_a_file_that_the_disk_does_not_give_back_is_damage(tmp_path, monkeypatch):
    folder = folder_with(tmp_path / "step-1", weights="abc")

    def bad_sector(path):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(durable, "sha256", bad_sector)
    assert fault(folder) == "weights cannot be read: Input/output error"


def test_a_folder_deleted_while_it_is_written_is_not_taken_for_whole(tmp_path):
    # As when somebody removes the run: a library makes the folder again and goes on with the second file.
    with pytest.raises(FileNotFoundError, match="deleted while it was being written"):
        with whole_folder(tmp_path / "step-1") as temporary:
            (temporary / "weights").write_text("abc")
            shutil.rmtree(temporary)
            temporary.mkdir()
            (temporary / "state").write_text("")
            write_manifest(temporary)
    assert list(tmp_path.iterdir()) == []


def test_an_error_while_writing_leaves_neither_folder_nor_rest(tmp_path):
    with pytest.raises(OSError, match="full"), whole_folder(tmp_path / "step-1") as temporary:
        (temporary / "weights").write_text("half")
        raise OSError("disk full")
    assert list(tmp_path.iterdir()) == []


def test_an_error_while_replacing_leaves_the_former_content(tmp_path):
    folder = folder_with(tmp_path / "best", weights="old")
    with pytest.raises(OSError), whole_folder(folder):
        raise OSError
    assert (folder / "weights").read_text() == "old"
    folder_with(folder, weights="new")
    assert (folder / "weights").read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["best"]


@pytest.mark.parametrize("renames_done", [0, 1, 2])
def test_killed_at_any_rename_of_a_replacement_the_folder_is_whole_after_recovery(tmp_path, monkeypatch, renames_done):
    folder = folder_with(tmp_path / "best", weights="old")
    rename, done = os.rename, []

    def rename_or_die(*arguments):
        if len(done) == renames_done:
            raise Killed
        done.append(arguments)
        rename(*arguments)

    monkeypatch.setattr(durable.shutil, "rmtree", lambda *a, **k: (_ for _ in ()).throw(Killed) if done else None)
    monkeypatch.setattr(os, "rename", rename_or_die)
    with pytest.raises(Killed):
        folder_with(folder, weights="new")
    monkeypatch.undo()
    recover(tmp_path)
    assert fault(folder) is None
    assert (folder / "weights").read_text() == ("new" if renames_done == 2 else "old")
    assert [p.name for p in tmp_path.iterdir()] == ["best"]


def test_recovery_removes_what_was_never_finished(tmp_path):
    (tmp_path / ".unfinished-step-7").mkdir()
    (tmp_path / ".unfinished-manifest.json").write_text("{")
    (tmp_path / "kept").mkdir()
    recover(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]
    recover(tmp_path / "absent")


def test_a_deletion_cut_short_leaves_nothing_under_the_name(tmp_path, monkeypatch):
    folder = folder_with(tmp_path / "step-1", weights="abc")
    rmtree = durable.shutil.rmtree

    def rmtree_or_die(path, ignore_errors=False):
        if path.exists():
            raise Killed
        rmtree(path, ignore_errors)

    monkeypatch.setattr(durable.shutil, "rmtree", rmtree_or_die)
    with pytest.raises(Killed):
        delete_folder(folder)
    monkeypatch.undo()
    assert not folder.exists()
    recover(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_json_is_replaced_whole_and_refuses_nan(tmp_path):
    write_json(tmp_path / "state.json", {"a": 1})
    with pytest.raises(ValueError):
        write_json(tmp_path / "state.json", {"a": float("nan")})
    assert (tmp_path / "state.json").read_text() == '{\n  "a": 1\n}\n'
    assert [p.name for p in tmp_path.iterdir()] == ["state.json"]
