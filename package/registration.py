"""Registration of the models with transformers' Auto classes, at no cost until those are used.

`AutoModel.register` takes the classes themselves, so calling it on import would load torch (three seconds) for every
`vanilla-transformer --help`. transformers keeps its own models in tables of names and imports
`transformers.models.<model_type>` when one is asked for; this module enters ours in the same tables, in the moment in
which transformers makes them.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

CONFIG_NAMES = {  # of each model type
    "recurrent_seq2seq": "RecurrentSeq2SeqConfig",
    "vanilla_transformer": "VanillaTransformerConfig",
}
MODEL_NAMES = {  # transformers' table of names, the mapping built from it, our class of each model type
    "MODEL_MAPPING_NAMES": ("MODEL_MAPPING", {"vanilla_transformer": "VanillaTransformerModel"}),
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES": (
        "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
        {
            "recurrent_seq2seq": "RecurrentSeq2SeqForConditionalGeneration",
            "vanilla_transformer": "VanillaTransformerForConditionalGeneration",
        },
    ),
}


def register_auto_classes() -> None:
    """Make AutoConfig, AutoModel and AutoModelForSeq2SeqLM know our models, now or as soon as they are imported."""
    for model_type in CONFIG_NAMES:
        # What transformers imports when it is asked for our model type: the package itself, whose names load lazily.
        sys.modules[f"transformers.models.{model_type}"] = sys.modules["vanilla_transformer"]
    steps = {
        "transformers.models.auto.configuration_auto": _enter_config,
        "transformers.models.auto.modeling_auto": _enter_models,
    }
    for name, step in list(steps.items()):
        if name in sys.modules:
            step(sys.modules[name])
            del steps[name]
    if steps:
        sys.meta_path.insert(0, _AfterImport(steps))


def _enter_config(configuration_auto: ModuleType) -> None:
    for model_type, name in CONFIG_NAMES.items():
        configuration_auto.CONFIG_MAPPING_NAMES[model_type] = name


def _enter_models(modeling_auto: ModuleType) -> None:
    for names, (mapping, models) in MODEL_NAMES.items():
        for model_type, model_name in models.items():
            getattr(modeling_auto, names)[model_type] = model_name
            # Built from CONFIG_MAPPING_NAMES when modeling_auto was imported, which may have been before our entry.
            getattr(modeling_auto, mapping)._reverse_config_mapping[CONFIG_NAMES[model_type]] = model_type


class _AfterImport(MetaPathFinder):
    """Runs one step after each of the named modules has been imported, once."""

    def __init__(self, steps: dict[str, Callable[[ModuleType], None]]) -> None:
        self.steps = steps

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.steps:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_then_step(module: ModuleType) -> None:
            load(module)
            step = self.steps.pop(fullname, None)
            if step is not None:
                step(module)

        spec.loader.exec_module = load_then_step  # type: ignore[method-assign]
        return spec
