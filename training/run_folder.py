"""RUN: where its parts lie, and whether a recipe may continue what is in it."""

from pathlib import Path
from typing import Any

from vanilla_transformer.configuration.errors import UsageError, problems_error
from vanilla_transformer.training.durable import MANIFEST, recover, write_text
from vanilla_transformer.training.finetune_recipe import FinetuneRecipe
from vanilla_transformer.training.folder_lock import LOCK, FolderLock
from vanilla_transformer.training.recipe import Recipe, to_yaml
from vanilla_transformer.training.recipe_yaml import read_mapping, read_value
from vanilla_transformer.training.write_errors import explained

# Keys that may differ between the sessions of one run: they say how long it is, what is kept and shown, how the work is
# laid out and where the data lies, but not what an update computes nor which model is the best. What the data holds is
# checked by its fingerprint. A key ending in a dot stands for a whole section.
FREE_KEYS = (
    *("training.max_steps", "training.max_epochs", "training.max_minutes", "training.patience"),
    *("training.log_every", "training.save_every", "training.eval_every"),
    *("training.keep_last", "training.average_last", "training.write_retry_minutes", "training.deterministic"),
    *("training.gradient_accumulation_steps", "training.num_workers", "training.threads", "training.compile"),
    *("training.activation_checkpointing", "generation.", "tracking."),
    *("training.max_skipped_in_a_row", "training.process_timeout_minutes"),
    *("finetuning.epochs", "finetuning.max_steps", "finetuning.eval_every", "finetuning.patience"),
    *("evaluation.metrics", "evaluation.lowercase_tokenized", "evaluation.scoring"),
    *("evaluation.tokenize", "evaluation.dev_limit"),
    *("data.corpus", "data.name", "data.revision", "data.train", "data.dev", "data.test"),
    *("tokenizer.path", "tokenizer.codes"),
)

_ADVICE = "Make room, mend it or choose another one."


class RunFolder:
    """The places of a run's files."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.lock: FolderLock | None = None  # on the process that writes, while it holds the folder
        self.recipe = self.path / "recipe.yaml"
        self.manifest = self.path / MANIFEST
        self.metrics = self.path / "metrics.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.best = self.path / "best"
        self.final = self.path / "final"
        self.results = self.path / "results"
        self.trackers = self.path / "trackers"

    def begin(self, recipe: Recipe | FinetuneRecipe, resume: bool) -> None:
        """Make the folder ready for this session; call on the main process, under `locked`.

        Raises UsageError where the folder is in use by a finished or broken-off run and `resume` is false, or where the
        recipe would change what that run computes, WriteError where the file system refuses.
        """
        with explained(f"The output folder {self.path}", _ADVICE):
            self._begin(recipe, resume)

    def record(self, recipe: Recipe | FinetuneRecipe) -> None:
        """Write the recipe: from here on the folder holds a run. Call when all that a user may have to mend was met.

        So a start that fails, on the corpus say, leaves a new folder free and the recipe of an older run as it was.
        """
        with explained(f"The output folder {self.path}", _ADVICE):
            write_text(self.recipe, to_yaml(recipe))

    def require(self) -> None:
        """Raise, as `FolderLock.require`, where the folder is not this run's any more: call before writing to it."""
        if self.lock is not None:
            self.lock.require()

    def _begin(self, recipe: Recipe | FinetuneRecipe, resume: bool) -> None:
        # prepared/ may be the product of an earlier `prepare`.
        content = sorted(entry.name for entry in self.path.iterdir() if entry.name not in {LOCK, "prepared"})
        if content and not resume:
            raise UsageError(
                f"{self.path} is not empty (it holds {', '.join(content[:5])}{', ...' if len(content) > 5 else ''}): "
                "continue the run in it with --resume, or give a new folder."
            )
        recover(self.path)
        recover(self.checkpoints)
        if self.recipe.exists():
            _refuse_changes(read_mapping(self.recipe), recipe)


def _refuse_changes(before: dict[str, Any], recipe: Recipe | FinetuneRecipe) -> None:
    old, new = _flat(before), flat(recipe)
    changes = [
        f"{key} = {new.get(key)}: the run in the folder has {old.get(key)}"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key) and not key.startswith(FREE_KEYS)
    ]
    if changes:
        raise problems_error("the recipe would change a run that has begun; start a new one in another folder", changes)


def flat(recipe: Recipe | FinetuneRecipe) -> dict[str, Any]:
    """Every key of the resolved recipe as section.key."""
    return _flat(read_value(to_yaml(recipe)))


def _flat(mapping: dict[str, Any]) -> dict[str, Any]:
    return {f"{section}.{key}": value for section, keys in mapping.items() for key, value in (keys or {}).items()}
