import errno
import resource

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from vanilla_transformer.configuration.errors import UserError
from vanilla_transformer.training.write_errors import WriteError, explained


@pytest.fixture
def small_files():
    """Files may not grow beyond 4 KiB, as on a full disk, but only for this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def by_python(path):
    path.write_bytes(bytes(9000))


def by_safetensors(path):
    save_file({"weight": torch.zeros(9000)}, path)


def by_tokenizers(path):
    Tokenizer(models.WordLevel({f"word{i}": i for i in range(900)}, unk_token="word0")).save(str(path))


@pytest.mark.parametrize("write", [by_python, by_safetensors, by_tokenizers])
def test_every_library_that_writes_is_understood(tmp_path, small_files, write):
    with pytest.raises(WriteError, match="^The cake could not be written: File too large") as caught:
        with explained("The cake", "Bake again."):
            write(tmp_path / "cake")
    assert str(caught.value) == f"{caught.value.happened} Bake again."
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("write", [by_safetensors, by_tokenizers])
def test_a_missing_folder_is_understood_too(tmp_path, write):
    with pytest.raises(WriteError, match="could not be written: No such file or directory"):
        with explained("The cake", ""):
            write(tmp_path / "absent" / "cake")


@pytest.mark.parametrize("number", ["ENOSPC", "EDQUOT", "EROFS", "EACCES", "EIO", "ESTALE"])
def test_the_systems_words_and_the_file_are_told(number):
    error = OSError(getattr(errno, number), "said by the system", "the/file")
    with pytest.raises(WriteError, match=r"could not be written: said by the system \(the/file\)\. Mend it\.$"):
        with explained("The cake", "Mend it."):
            raise error


@pytest.mark.parametrize("error", [UserError("no"), ValueError("shape (3, 4)"), KeyboardInterrupt()])
def test_other_errors_pass_as_they_are(error):
    with pytest.raises(type(error)) as caught, explained("The cake", "Mend it."):
        raise error
    assert caught.value is error


def test_the_innermost_explanation_stays():
    with pytest.raises(WriteError, match="^The sugar"):
        with explained("The cake", "Mend it."), explained("The sugar", "Mend it."):
            raise OSError(errno.ENOSPC, "No space left on device")
