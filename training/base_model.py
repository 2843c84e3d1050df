"""The model that a fine-tuning starts from: any of ours, saved or on the Hub, by this package's own classes alone."""

from pathlib import Path

from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.configuration.errors import UserError, problems_error
from vanilla_transformer.training.hub_access import reading_problem
from vanilla_transformer.training.model_files import is_path, require_model_folder
from vanilla_transformer.training.saved_model import load_model


def read_config(name: str) -> PreTrainedConfig:
    """The config of a model folder or Hub id; nothing else is loaded, and no code but this package's.

    Raises UserError where there is none, or where the model is not one of ours.
    """
    if is_path(name) and not (Path(name) / "config.json").is_file():
        require_model_folder(Path(name))  # says what it is instead
    kind = None
    try:
        kind = PreTrainedConfig.get_config_dict(name)[0].get("model_type")
        # A model type of ours is of our own class, whatever code the folder brings and names.
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # transformers raises whatever it trips over
        if hasattr(error, "exit_code"):  # our config's own list of problems
            raise
        if kind is None and not is_path(name) and (problem := reading_problem("model", name)):
            raise UserError(f"{problem} No local folder is called {name} either.") from error
        if kind is None:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UserError(f"{name} has no config of a model: {reason}") from error
        raise _not_ours(name, str(kind)) from error
    if not type(config).__module__.startswith("vanilla_transformer."):
        raise _not_ours(name, config.model_type)
    return config


def load_base(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model and its tokenizer, as `load_model` gives them, if it can be taught.

    Raises UserError where it is not ours or not whole, or where its tokenizer cannot make labels for it.
    """
    read_config(name)
    model, tokenizer = load_model(name)
    problems = []
    if tokenizer.pad_token_id is None:
        problems.append("tokenizer: has no pad token; set pad_token in tokenizer_config.json")
    if (tokenizer("a")["input_ids"] or [None])[-1] != model.config.eos_token_id:
        problems.append("tokenizer: does not append the end token; add a TemplateProcessing post-processor")
    if problems:
        raise problems_error(f"model {name}", problems, UserError)
    return model, tokenizer


def _not_ours(name: str, kind: str) -> UserError:
    if kind == "marian":
        return UserError(
            f"{name} is a Marian model of transformers. Convert it first (vanilla-transformer convert --help), then "
            "fine-tune the folder that this makes."
        )
    return UserError(
        f"{name} is a {kind} model; finetune takes models of this package: a RUN/final, a converted model, or the Hub "
        "id of one of these."
    )
