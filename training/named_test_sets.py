"""Test sets by sacreBLEU's names (wmt14/full, iwslt17, multi30k/2016): what two systems must share to be compared."""

import difflib
from dataclasses import dataclass
from pathlib import Path

from sacrebleu.dataset import DATASETS
from sacrebleu.dataset.base import Dataset
from sacrebleu.utils import SACREBLEU_DIR

from vanilla_transformer.configuration.errors import UsageError, UserError
from vanilla_transformer.training.text_files import read_lines


@dataclass(frozen=True)
class NamedTestSet:
    """A test set's lines: line i of each of the `references` translates line i of the `sources`."""

    sources: list[str]
    references: list[list[str]]
    target_lang: str


def load_test_set(name: str, language_pair: str) -> NamedTestSet:
    """The test set, read from the folder $SACREBLEU (~/.sacrebleu), where sacreBLEU fetches it once.

    Raises UsageError for a name or a language pair ("en-de") that sacreBLEU does not have, UserError where the text is
    not there and cannot be fetched.
    """
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=1)
        hint = f"did you mean {near[0]}?" if near else "sacrebleu --list names them all."
        raise UsageError(f"sacreBLEU has no test set {name}; {hint}")
    dataset = DATASETS[name]
    if language_pair not in dataset.langpairs:
        pairs = ", ".join(sorted(dataset.langpairs))
        raise UsageError(f"The test set {name} has no language pair {language_pair}; it has {pairs}.")
    _require(dataset, language_pair)
    sources = read_lines(dataset.get_source_file(language_pair))
    references = [read_lines(path) for path in dataset.get_reference_files(language_pair)]
    return NamedTestSet(sources, references, language_pair.split("-")[1])


def _require(dataset: Dataset, language_pair: str) -> None:
    """See to it that the files are in sacreBLEU's folder."""
    try:
        files = dataset.get_files(language_pair)  # fetches what is missing
        missing = [file for file in files if not Path(file).is_file()]
        reason = f"no {missing[0]}" if missing else ""
    except (Exception, SystemExit) as error:  # urllib, tarfile, portalocker and sacreBLEU's own sys.exit
        reason = " ".join(str(error).split()) or type(error).__name__
    if reason:
        raise UserError(
            f"The test set {dataset.name} {language_pair} is not in {SACREBLEU_DIR} and could not be fetched "
            f"({reason}). Connect to the network, or set SACREBLEU to a folder that holds it."
        )
