"""transformers' own test mixins, filled in for our classes. pytest runs this file for hf_suite.py, and only there.

`tests` is the folder that transformers ships in its source distribution, with stand-ins for what that leaves out.
"""

import os
import tempfile
import unittest
from pathlib import Path
from typing import Any

import torch
from tests.generation.test_utils import GenerationTesterMixin
from tests.test_configuration_common import ConfigTester
from tests.test_modeling_common import ModelTesterMixin, ids_tensor, random_attention_mask
from tests.test_pipeline_mixin import PipelineTesterMixin, pipeline_test_mapping
from tests.test_tokenization_common import TokenizerTesterMixin
from tests.test_tokenizers_backend_mixin import TokenizersBackendTesterMixin
from transformers import PreTrainedTokenizerFast

import vanilla_transformer as vt
from vanilla_transformer.training.recipe import TokenizerConfig
from vanilla_transformer.training.tokenizer import train_tokenizer

MODELS = (vt.VanillaTransformerModel, vt.VanillaTransformerForConditionalGeneration)
SAMPLE = Path(__file__).resolve().parent.parent / "README.md"


class ModelTester:
    """What the mixins ask of a model: a small configuration and a batch of random tokens."""

    # Names that the mixins read.
    batch_size = 3
    seq_length = 7
    is_training = True
    vocab_size = 99
    hidden_size = 16
    num_hidden_layers = 2
    num_attention_heads = 4

    def __init__(self, parent: unittest.TestCase, **fields: Any):
        self.parent = parent
        self.fields = fields

    def get_config(self) -> vt.VanillaTransformerConfig:
        small = {
            "vocab_size": self.vocab_size,
            "d_model": self.hidden_size,
            "d_ff": 24,
            "num_encoder_layers": self.num_hidden_layers,
            "num_decoder_layers": self.num_hidden_layers,
            "num_heads": self.num_attention_heads,
        }
        return vt.VanillaTransformerConfig(**(small | self.fields))

    def prepare_config_and_inputs_for_common(self) -> tuple[vt.VanillaTransformerConfig, dict[str, torch.Tensor]]:
        shape = (self.batch_size, self.seq_length)
        # Above 3 stand no special tokens: a pad in the middle would be masked.
        inputs = {name: ids_tensor(shape, self.vocab_size - 4) + 4 for name in ("input_ids", "decoder_input_ids")}
        masks = {name: random_attention_mask(shape) for name in ("attention_mask", "decoder_attention_mask")}
        return self.get_config(), inputs | masks

    prepare_config_and_inputs = prepare_config_and_inputs_for_common


class PaperModelTest(ModelTesterMixin, GenerationTesterMixin, unittest.TestCase):
    """The paper's model, small."""

    fields: dict[str, Any] = {}
    all_model_classes = MODELS
    is_encoder_decoder = True
    # Else skipped for models without a year in their file.
    test_can_init_all_missing_weights_before_2023 = True

    def setUp(self) -> None:
        self.model_tester = ModelTester(self, **self.fields)
        self.config_tester = ConfigTester(self, config_class=vt.VanillaTransformerConfig, d_model=32)

    def test_config(self) -> None:
        self.config_tester.run_common_tests()


class OtherSwitchesModelTest(PaperModelTest):
    """Every switch away from the paper's value."""

    fields = {
        "norm_position": "pre",
        "positional_encoding": "learned",
        "max_source_positions": 64,
        "max_target_positions": 64,
        "attention_bias": True,
        "output_bias": True,
        "activation": "gelu",
        "embedding_sharing": "none",
        "d_k": 6,
        "d_v": 5,
    }


def small_tokenizer() -> PreTrainedTokenizerFast:
    """The package's own BPE, trained on the README."""
    return train_tokenizer(SAMPLE.read_text(encoding="utf-8").splitlines(), TokenizerConfig(vocab_size=700))


class TranslationPipelineTests(unittest.TestCase):
    """What transformers 4 asked of its translation pipelines, in the form that PipelineTesterMixin calls."""

    def get_test_pipeline(self, model: Any, tokenizer: Any, dtype: str, **_: Any) -> tuple[Any, list[str]]:
        translator = vt.TranslationPipeline(model=model, tokenizer=tokenizer, dtype=dtype, max_new_tokens=20)
        return translator, ["Some string", "Some other text"]

    def run_pipeline_test(self, translator: Any, examples: list[str]) -> None:
        def checked(results: list[dict[str, str]], count: int) -> None:
            self.assertEqual([list(result) for result in results], [["translation_text"]] * count)
            self.assertTrue(all(isinstance(result["translation_text"], str) for result in results))

        checked(translator(examples[0]), 1)
        checked(translator(examples[:1]), 1)
        checked(translator(examples), 2)


class PipelineTest(PipelineTesterMixin, unittest.TestCase):
    pipeline_model_mapping = {"translation": vt.VanillaTransformerForConditionalGeneration}

    @classmethod
    def setUpClass(cls) -> None:
        pipeline_test_mapping["translation"] = {"test": f"{__name__}.TranslationPipelineTests"}
        # Where the mixin looks for tiny models: hf_suite.py wrote the summary that names this one.
        name = vt.VanillaTransformerForConditionalGeneration.__name__
        folder = Path(os.environ["TRANSFORMERS_TINY_MODEL_PATH"]) / "vanilla_transformer" / name
        tokenizer = small_tokenizer()
        config = ModelTester(cls(), vocab_size=len(tokenizer)).get_config()
        vt.VanillaTransformerForConditionalGeneration(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    def test_pipeline_translation(self) -> None:
        self.run_task_tests(task="translation")

    def test_pipeline_translation_fp16(self) -> None:
        self.run_task_tests(task="translation", dtype="float16")


class _Tokenizer:
    """The trained tokenizer as a folder, which is what from_pretrained_id may name."""

    tokenizer_class = PreTrainedTokenizerFast
    rust_tokenizer_class = PreTrainedTokenizerFast

    @classmethod
    def setUpClass(cls) -> None:
        cls._folder = tempfile.TemporaryDirectory()
        small_tokenizer().save_pretrained(cls._folder.name)
        cls.from_pretrained_id = cls._folder.name
        super().setUpClass()

    @classmethod
    def tearDownClass(cls) -> None:
        super().tearDownClass()
        cls._folder.cleanup()


class TokenizerTest(_Tokenizer, TokenizerTesterMixin, unittest.TestCase):
    pass


class TokenizersBackendTest(_Tokenizer, TokenizersBackendTesterMixin, unittest.TestCase):
    pass
