"""Importing the package is enough for transformers' Auto classes, in whatever order things are imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

LOADS = """
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM
import sys
folder = sys.argv[1]
assert type(AutoConfig.from_pretrained(folder)) is vanilla_transformer.VanillaTransformerConfig
assert type(AutoModel.from_pretrained(folder)) is vanilla_transformer.VanillaTransformerModel
model = AutoModelForSeq2SeqLM.from_pretrained(folder)
assert type(model) is vanilla_transformer.VanillaTransformerForConditionalGeneration
again = AutoModelForSeq2SeqLM.from_config(model.config)
assert type(again) is vanilla_transformer.VanillaTransformerForConditionalGeneration
"""


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment, timeout=300
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model of random weights."""
    import vanilla_transformer as vt

    config = vt.VanillaTransformerConfig(
        vocab_size=20, d_model=8, d_ff=8, num_heads=2, num_encoder_layers=1, num_decoder_layers=1
    )
    path = tmp_path_factory.mktemp("model")
    vt.VanillaTransformerForConditionalGeneration(config).save_pretrained(path)
    return path


def test_importing_loads_neither_torch_nor_transformers():
    code = """
import sys, vanilla_transformer
assert vanilla_transformer.__version__
loaded = {"torch", "transformers", "datasets", "numpy"} & set(sys.modules)
assert not loaded, loaded
"""
    result = run_python(code)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    "first",
    [
        "import vanilla_transformer",
        "from transformers import AutoModelForSeq2SeqLM; import vanilla_transformer",
        "import vanilla_transformer; vanilla_transformer.VanillaTransformerForConditionalGeneration",
        "import vanilla_transformer; from transformers.modeling_layers import GradientCheckpointingLayer",
        "import vanilla_transformer; from transformers import pipeline, Seq2SeqTrainer",
    ],
)
def test_auto_classes_load_a_folder_without_trust(first: str, folder: Path):
    result = run_python(first + LOADS, str(folder))
    assert result.returncode == 0, result.stderr


def test_transformers_own_models_are_untouched():
    code = """
import vanilla_transformer
from transformers import AutoConfig, AutoModelForSeq2SeqLM, MarianConfig, MarianMTModel
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING, MODEL_MAPPING
assert MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING[MarianConfig] is MarianMTModel
assert MarianConfig in MODEL_MAPPING and vanilla_transformer.VanillaTransformerConfig in MODEL_MAPPING
assert type(AutoConfig.for_model("marian")) is MarianConfig
assert type(AutoConfig.for_model("vanilla_transformer")) is vanilla_transformer.VanillaTransformerConfig
config = MarianConfig(vocab_size=8, d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=1,
    decoder_attention_heads=1, encoder_ffn_dim=8, decoder_ffn_dim=8, pad_token_id=1)
assert type(AutoModelForSeq2SeqLM.from_config(config)) is MarianMTModel
"""
    result = run_python(code)
    assert result.returncode == 0, result.stderr


def test_every_public_name_is_there_and_others_are_not():
    import vanilla_transformer as vt

    for name in vt.__all__:
        assert getattr(vt, name) is not None
    assert set(vt.__all__) <= set(dir(vt))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        vt.nonsense  # noqa: B018
