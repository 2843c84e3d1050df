"""The sections of a recipe: every key with its unit, its default, and the paper's value where the default differs.

Values that depend on several keys or on files are checked in `recipe`; types are checked there too, from these
annotations. A section's `problems` names values that are out of range, as "key = value: what to write instead".
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from vanilla_transformer.configuration.config_common import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


@dataclass(frozen=True)
class DataConfig:
    """Where the sentence pairs come from and which of them are kept."""

    # A named corpus (reverse, home-assistant), a Hub data set id, a folder, or a file of pairs.
    corpus: str
    # Language codes; also the keys of the `translation` column and what {lang} stands for in file patterns.
    source_lang: str
    target_lang: str
    # Which configuration of a Hub data set ("de-en"), and which commit, tag or branch of it.
    name: str | None = None
    revision: str | None = None
    # Files of each split inside the folder ("train.{lang}.gz"), or names of a Hub data set's splits.
    train: str | list[str] | None = None
    dev: str | list[str] | None = None
    test: str | list[str] | None = None
    # Read a Hub data set without downloading it whole.
    streaming: bool = False
    # Tokens per side, </s> included; longer training pairs are dropped and counted.
    max_length: int = 250
    # Longest allowed ratio of the sides' lengths in training pairs; null keeps all.
    max_ratio: float | None = None
    # Of equal training pairs all but the first are dropped.
    drop_duplicates: bool = True
    # Training pairs whose source stands in dev or test are dropped.
    drop_test_overlap: bool = True
    lowercase: bool = False
    # Only the first so many training or dev pairs; null takes all.
    limit: int | None = None
    dev_limit: int | None = None

    def problems(self) -> list[str]:
        found = _below(self, 1, "max_length", "limit", "dev_limit")
        for name in ("corpus", "source_lang", "target_lang"):
            if not getattr(self, name).strip():
                found.append(f"{name}: is empty")
        if self.source_lang == self.target_lang:
            found.append(f"target_lang = {self.target_lang}: is the source language too")
        if self.max_ratio is not None and self.max_ratio <= 1:
            found.append(f"max_ratio = {self.max_ratio}: must be above 1, for example 1.5; null keeps every pair")
        return found


@dataclass(frozen=True)
class TokenizerConfig:
    """The vocabulary that both languages share."""

    # Entries, special tokens included; the paper has about 37,000 for English-German.
    vocab_size: int = 37000
    # Folder of a trained tokenizer to use as it is; null trains one on the training pairs.
    path: str | None = None
    # bpe: byte-pair encoding of raw text; words: text that is segmented already, one token per space-separated word.
    type: Literal["bpe", "words"] = "bpe"
    # Merges that subword-nmt has learned, plain or .gz, in the place of merges of our own; for text whose words are
    # separated by spaces. They decide the size; vocab_size then only sizes the model of a dry run.
    codes: str | None = None

    def problems(self) -> list[str]:
        found = _below(self, 5, "vocab_size")
        if self.codes is not None and (self.path is not None or self.type == "words"):
            found.append(f"codes = {self.codes}: belongs to type = bpe, and to no tokenizer that is trained already")
        return found


@dataclass(frozen=True)
class ModelConfig:
    """An architecture, a preset of the paper, and any field of the architecture's config that differs from it."""

    # A row of the paper's Table 3 ("base", "big", "C-n2", ...); null starts from the field's own defaults.
    preset: str | None = "base"
    # The Transformer, or what it replaced: then the fields are RecurrentSeq2SeqConfig's, and there are no presets.
    architecture: Literal["vanilla_transformer", "recurrent_seq2seq"] = "vanilla_transformer"
    # The other keys of the section.
    fields: dict[str, Any] = field(default_factory=dict)

    def to_config(self, vocab_size: int, **more: Any) -> "PreTrainedConfig":
        """The model's config for a vocabulary of this size; `more` are fields that a recipe does not set.

        Raises ConfigError, which lists every problem.
        """
        config_class = config_classes()[self.architecture]
        if foreign := [name for name in self.fields if name not in config_class.__annotations__]:
            own = ", ".join(name for name in sorted(config_class.__annotations__) if not name.startswith("_"))
            raise ConfigError("\n".join(f"{name}: no field of {self.architecture}; it has {own}" for name in foreign))
        fields = {**self.fields, "vocab_size": vocab_size, **more}
        if self.architecture == "vanilla_transformer" and self.preset is not None:
            return config_class.from_preset(self.preset, **fields)
        if self.preset not in (None, "base"):
            raise ConfigError(f"preset = {self.preset}: presets are the Transformer's; leave it out")
        return config_class(**fields)


def config_classes() -> dict[str, type]:
    """The config class of each architecture; not at the top, because they load transformers."""
    from vanilla_transformer.configuration.configuration_recurrent_seq2seq import RecurrentSeq2SeqConfig
    from vanilla_transformer.configuration.configuration_vanilla_transformer import VanillaTransformerConfig

    return {config.model_type: config for config in (VanillaTransformerConfig, RecurrentSeq2SeqConfig)}


@dataclass(frozen=True)
class TrainingConfig:
    """Optimisation, its length, and what is saved and logged."""

    # Fixes the first weights, dropout and the order of batches.
    seed: int = 1
    # The run ends at the first limit reached, in updates (paper: 100,000 base, 300,000 big), passes over the data,
    # minutes.
    max_steps: int = 100_000
    max_epochs: int | None = None
    max_minutes: float | None = None
    # Padded tokens of one update, over all processes and micro-batches (paper: about 25,000 a side).
    max_source_tokens: int = 25_000
    max_target_tokens: int = 25_000
    # Micro-batches that each process splits its part of an update into; changes memory, not the result.
    gradient_accumulation_steps: int = 1
    # Rate at the end of the warm-up; null: the paper's d_model^-0.5 * warmup_steps^-0.5. Then 1/sqrt(step) (5.3).
    learning_rate: float | None = None
    warmup_steps: int = 4000
    adam_beta1: float = 0.9
    adam_beta2: float = 0.98
    adam_epsilon: float = 1e-9
    # Gradients are scaled down to this norm; null, the paper: never.
    max_grad_norm: float | None = None
    # bfloat16 computes in bfloat16 and keeps weights and optimiser in float32.
    precision: Literal["float32", "bfloat16"] = "float32"
    # In updates. average_last takes the checkpoints of save_every (paper: last 5 for base, last 20 for big).
    log_every: int = 50
    save_every: int = 1000
    eval_every: int = 1000
    keep_last: int = 5
    average_last: int = 5
    # Minutes that a checkpoint or model is tried to be written again, on a full disk say, before the run ends with its
    # last good checkpoint; 0 ends it at once.
    write_retry_minutes: float = 10
    # Validations without improvement of the metric before the run stops; null never stops. The best is kept by it too.
    patience: int | None = None
    early_stopping_metric: Literal["loss", "bleu"] = "bleu"
    # Updates in a row whose loss or gradient is not finite before the run stops; each of them is skipped.
    max_skipped_in_a_row: int = 20
    # Of several processes, how long each waits for another one that does not answer before it gives up and stops. Not
    # counted is what the main process does alone, such as preparing the corpus or writing a checkpoint.
    process_timeout_minutes: float = 30.0
    # Processes that make batches beside each training process; 0 makes them in it.
    num_workers: int = 0
    # CPU threads of each process; null leaves it to torch.
    threads: int | None = None
    # Recompute layers in the backward pass: less memory, more time.
    activation_checkpointing: bool = False
    # torch.compile: faster updates after minutes of compiling.
    compile: bool = False
    # Only algorithms that give the same bits each time, slower on a GPU; on a CPU they all do.
    deterministic: bool = False

    def problems(self) -> list[str]:
        found = _below(self, 0, "seed", "num_workers", "write_retry_minutes")
        found += _below(self, 1, "max_steps", "max_epochs", "max_source_tokens", "max_target_tokens")
        found += _below(self, 1, "gradient_accumulation_steps", "warmup_steps", "threads", "patience")
        found += _below(self, 1, "log_every", "save_every", "eval_every", "keep_last", "average_last")
        found += _below(self, 1, "max_skipped_in_a_row")
        for name in ("max_minutes", "learning_rate", "adam_epsilon", "max_grad_norm", "process_timeout_minutes"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                found.append(f"{name} = {value}: must be above 0")
        for name in ("adam_beta1", "adam_beta2"):
            if not 0 <= getattr(self, name) < 1:
                found.append(f"{name} = {getattr(self, name)}: must be at least 0 and below 1")
        if self.average_last > self.keep_last:
            found.append(f"average_last = {self.average_last}: more than keep_last = {self.keep_last}; raise keep_last")
        return found


@dataclass(frozen=True)
class DecodingConfig:
    """Beam search, for validation, the final evaluation, and as the saved model's default."""

    # Paper 6.1: beam 4, alpha 0.6 of GNMT's length penalty ((5 + |Y|) / 6)^alpha, at most input length + 50 tokens.
    num_beams: int = 4
    length_penalty: float = 0.6
    max_new_tokens_over_input: int = 50
    # Padded source tokens decoded at once; changes speed and memory, not the output.
    batch_tokens: int = 4096

    def problems(self) -> list[str]:
        found = _below(self, 0, "length_penalty")
        return found + _below(self, 1, "num_beams", "max_new_tokens_over_input", "batch_tokens")


@dataclass(frozen=True)
class EvaluationConfig:
    """How translations are scored; each score carries sacreBLEU's signature."""

    metrics: list[Literal["bleu", "chrf", "ter"]] = field(default_factory=lambda: ["bleu", "chrf", "ter"])
    # Also BLEU of lower-cased, Moses-tokenised text, which some papers report (Multi30k).
    lowercase_tokenized: bool = False
    # paper: also the tokenised BLEU of the Transformer's paper, German compounds cut; most often above sacreBLEU's.
    scoring: Literal["sacrebleu", "paper"] = "sacrebleu"
    # Only the first so many dev pairs are decoded in validation; null takes all.
    dev_limit: int | None = None
    # sacreBLEU's tokenizer; null chooses by target language (zh, ja-mecab, ko-mecab, else 13a).
    tokenize: str | None = None
    # Translate dev in validation; false validates by loss alone.
    decode: bool = True

    def problems(self) -> list[str]:
        found = _below(self, 1, "dev_limit")
        if not self.metrics:
            found.append("metrics = []: name at least one of bleu, chrf, ter")
        return found


@dataclass(frozen=True)
class TrackingConfig:
    """Where metrics go besides metrics.jsonl."""

    # Each needs the package's extra of the same name.
    trackers: list[Literal["tensorboard", "trackio"]] = field(default_factory=list)
    project: str = "vanilla-transformer"

    def problems(self) -> list[str]:
        return [] if self.project.strip() else ["project: is empty"]


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a run, all of it valid: what to learn from, what to learn, how, and how it is judged."""

    data: DataConfig
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    generation: DecodingConfig = field(default_factory=DecodingConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)


def _below(section: Any, minimum: int, *names: str) -> list[str]:
    """The named values that are set and smaller than `minimum`."""
    values = {name: getattr(section, name) for name in names}
    return [
        f"{name} = {value}: must be at least {minimum}"
        for name, value in values.items()
        if value is not None and value < minimum
    ]
