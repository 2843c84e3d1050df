"""A saved folder is all that anyone needs: it loads where this package is not installed, and saves itself again."""

import ast
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer

import vanilla_transformer as vt
from vanilla_transformer.configuration import configuration_vanilla_transformer as real_config_module
from vanilla_transformer.modeling import configuration_vanilla_transformer as stand_in_module
from vanilla_transformer.modeling.generation_vanilla_transformer import paper_generation_config

ROOT = Path(__file__).resolve().parents[2]
CODE = {path.name for path in ROOT.glob("modeling/*_vanilla_transformer.py")} | {"config_common.py", "presets.py"}
DATA = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
SOURCES = ["The battery is low.", "", "Connect to the network, please!", "light"]

WITHOUT_PACKAGE = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "vanilla_transformer":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""
WITH_PACKAGE = "import vanilla_transformer as vt\n"
COMMON = """
import json, os, sys
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline
folder, out, sources = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
def texts(pipe, **kwargs):
    return [result["translation_text"] for result in pipe(sources, **kwargs)]
def refused(load):
    try:
        load()
    except ValueError as error:
        return "trust_remote_code=True" in str(error)
    return False
"""


@pytest.fixture(scope="module")
def folder(memorised, tmp_path_factory) -> Path:
    # A name that is no Python identifier, as runs have.
    path = tmp_path_factory.mktemp("run") / "2026-01-01 v1.0" / "final"
    # Pipelines of other tests may have written transformers' own defaults into the generation config.
    memorised.model.generation_config = paper_generation_config(memorised.model.config)
    memorised.model.save_pretrained(path)
    # A fast tokenizer saves the padding of its last call.
    memorised.tokenizer.backend_tokenizer.no_padding()
    memorised.tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def translations(memorised) -> list[str]:
    pipe = vt.TranslationPipeline(model=memorised.model, tokenizer=memorised.tokenizer)
    texts = [result["translation_text"] for result in pipe(SOURCES)]
    assert texts[:2] == ["电池电量低。", ""]
    return texts


def contents(folder: Path) -> dict[str, bytes]:
    """Every file but tokenizer_config.json, in which the library notes how the tokenizer was loaded."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "tokenizer_config.json"}


def in_a_fresh_process(tmp_path: Path, prelude: str, code: str, folder: Path | str, **environment: str) -> dict:
    """Runs the code with its own Hugging Face home and an empty working directory; `answer`, which it sets."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = {"HF_HOME": str(tmp_path / "hf-home"), "OMP_NUM_THREADS": "1"} | environment
    answer = "\nwith open(out + '/answer.json', 'w') as file:\n    json.dump(answer, file)\n"
    done = subprocess.run(
        [sys.executable, "-c", prelude + COMMON + code + answer, str(folder), str(tmp_path), json.dumps(SOURCES)],
        cwd=elsewhere,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert list(elsewhere.iterdir()) == []
    return json.loads((tmp_path / "answer.json").read_text())


def test_a_folder_holds_weights_settings_tokenizer_and_flat_code(folder):
    assert {path.name for path in folder.iterdir()} == CODE | DATA
    config = json.loads((folder / "config.json").read_text())
    entries = [*config["auto_map"].values(), *(task["impl"] for task in config["custom_pipelines"].values())]
    for entry in entries:
        module, name = entry.split(".")
        assert f"class {name}(" in (folder / f"{module}.py").read_text()


def test_the_config_s_real_file_is_saved_after_the_stand_in(folder):
    # Saving a model copies the files beside its own, and with them the stand-in of modeling/; the config is saved
    # later and brings the real file of the same name. If transformers ever turns that order round, this fails.
    stand_in = Path(stand_in_module.__file__).read_bytes()
    real = Path(real_config_module.__file__).read_bytes()
    assert stand_in != real
    assert (folder / "configuration_vanilla_transformer.py").read_bytes() == real


def test_the_code_imports_nothing_that_is_not_there(folder):
    allowed = set(sys.stdlib_module_names) | {"torch", "transformers", "numpy"}  # transformers needs numpy itself
    for name in CODE:
        for node in ast.walk(ast.parse((folder / name).read_text())):
            if isinstance(node, ast.Import):
                assert {alias.name.partition(".")[0] for alias in node.names} <= allowed, name
            elif isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1 and f"{node.module}.py" in CODE, name
            elif isinstance(node, ast.ImportFrom):
                assert node.module.partition(".")[0] in allowed, name


def test_saving_what_was_loaded_changes_no_byte(folder, tmp_path):
    AutoModelForSeq2SeqLM.from_pretrained(folder).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    assert contents(tmp_path) == contents(folder)
    saved, resaved = (json.loads((each / "tokenizer_config.json").read_text()) for each in (folder, tmp_path))
    assert saved.items() <= resaved.items()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_saving_and_loading_keeps_every_output(memorised, tmp_path, dtype):
    model = vt.VanillaTransformerForConditionalGeneration(memorised.model.config).to(dtype).eval()
    model.load_state_dict(memorised.model.state_dict())
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype="auto")
    assert loaded.dtype == dtype and not loaded.training
    batch = memorised.tokenizer(SOURCES, padding=True, return_tensors="pt")
    decoder_input_ids = torch.tensor([[0, 5, 6, 7]]).expand(len(SOURCES), -1)
    with torch.no_grad():
        outputs = [each(**batch, decoder_input_ids=decoder_input_ids).logits for each in (model, loaded)]
        # The same without the head, which AutoModel leaves out.
        bare = AutoModel.from_pretrained(tmp_path, dtype="auto")(**batch, decoder_input_ids=decoder_input_ids)
    assert torch.equal(*outputs)
    assert torch.equal(loaded.lm_head(bare.last_hidden_state), outputs[0])


def test_sinusoids_are_right_in_a_model_that_was_built_without_memory(folder):
    # from_pretrained builds on the meta device: what it computes there and does not load is lost.
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.bfloat16).float()
    table = model.model.encoder.positions(torch.arange(100))
    d_model = model.config.d_model
    for position, dimension in [(0, 0), (0, 1), (1, 0), (7, 4), (99, 5), (99, d_model - 1)]:
        angle = position / 10000 ** (2 * (dimension // 2) / d_model)
        expected = math.cos(angle) if dimension % 2 else math.sin(angle)
        assert table[position, dimension].item() == pytest.approx(expected, abs=1e-6)


def test_a_config_alone_brings_its_code(tmp_path):
    vt.VanillaTransformerConfig.from_preset("base", vocab_size=100).save_pretrained(tmp_path)
    code = {"config_common.py", "configuration_vanilla_transformer.py", "presets.py"}
    assert set(contents(tmp_path)) == {"config.json"} | code


def test_a_repo_s_prefix_does_not_stay_in_a_config():
    # Older releases of transformers put "user/repo--" before the entries of a config that came from the Hub.
    plain = vt.VanillaTransformerConfig(vocab_size=100)
    prefixed = plain.to_dict()
    prefixed["auto_map"] = {name: f"user/repo--{entry}" for name, entry in plain.auto_map.items()}
    prefixed["custom_pipelines"]["translation"]["impl"] = "user/repo--pipeline_vanilla_transformer.TranslationPipeline"
    assert vt.VanillaTransformerConfig.from_dict(prefixed).to_dict() == plain.to_dict()


@pytest.mark.integration
def test_without_the_package_a_folder_loads_translates_and_saves_itself(folder, translations, tmp_path):
    answer = in_a_fresh_process(
        tmp_path,
        WITHOUT_PACKAGE,
        """
loads = [AutoConfig.from_pretrained, AutoModel.from_pretrained, AutoModelForSeq2SeqLM.from_pretrained]
answer = {"refused": [refused(lambda: load(folder)) for load in loads]}
answer["refused"] += [refused(lambda: load(folder, trust_remote_code=False)) for load in loads]
answer["refused"] += [refused(lambda: pipeline("translation", model=folder))]
trust = {"trust_remote_code": True}
config = AutoConfig.from_pretrained(folder, **trust)
answer["heads"] = [config.num_attention_heads, config.num_heads]
tokenizer = AutoTokenizer.from_pretrained(folder)
tokenizer.save_pretrained(out + "/model")
answer["bare"] = type(AutoModel.from_pretrained(folder, **trust)).__name__
model = AutoModelForSeq2SeqLM.from_pretrained(folder, **trust)
generated = model.generate(**tokenizer(sources, padding=True, return_tensors="pt"))
answer["generated"] = tokenizer.batch_decode(generated, skip_special_tokens=True)
pipe = pipeline("translation", model=folder, **trust)
answer["texts"] = texts(pipe, batch_size=4)
answer["inferred_task"] = pipeline(model=folder, **trust)("No.")
answer["absent"] = "vanilla_transformer" not in sys.modules
model.save_pretrained(out + "/model")
pipe.save_pretrained(out + "/pipe")
# From what was just saved, in the same process.
again = pipeline("translation", model=out + "/pipe", **trust)
answer["again"] = texts(again)
again.save_pretrained(out + "/again")
""",
        folder,
    )
    assert answer["refused"] == [True] * 7
    assert answer["heads"] == [4, 4]
    assert answer["bare"] == "VanillaTransformerModel"
    assert answer["absent"]
    assert answer["texts"] == answer["again"] == translations
    # generate alone translates the empty line too.
    assert [text for text, source in zip(answer["generated"], SOURCES, strict=True) if source] == [
        text for text in translations if text
    ]
    assert answer["inferred_task"] == [{"translation_text": "否。"}]
    for name in ("model", "pipe", "again"):
        assert contents(tmp_path / name) == contents(folder), name


@pytest.mark.integration
def test_with_the_package_no_trust_is_needed(folder, translations, tmp_path):
    answer = in_a_fresh_process(
        tmp_path,
        WITH_PACKAGE,
        """
model = AutoModelForSeq2SeqLM.from_pretrained(folder)
pipe = pipeline("translation", model=folder, pipeline_class=vt.TranslationPipeline)
answer = {"own": [type(each).__module__ for each in (model, model.config, AutoConfig.from_pretrained(folder), pipe)]}
answer["texts"] = texts(pipe)
answer["without_class_refused"] = refused(lambda: pipeline("translation", model=folder))
# The folder's pipeline file, this package's model.
trusted = pipeline("translation", model=folder, trust_remote_code=True)
answer["trusted"] = texts(trusted)
trusted.save_pretrained(out + "/trusted")
os.chdir(os.path.dirname(folder))
answer["relative"] = texts(pipeline("translation", model="final", trust_remote_code=True))
""",
        folder,
    )
    assert all(module.startswith("vanilla_transformer.") for module in answer["own"])
    assert answer["texts"] == answer["trusted"] == answer["relative"] == translations
    assert answer["without_class_refused"]
    assert contents(tmp_path / "trusted") == contents(folder)


@pytest.mark.integration
def test_without_the_package_a_repo_loads_from_the_cache_and_loses_its_prefix(folder, translations, tmp_path):
    commit = "0123456789abcdef0123456789abcdef01234567"
    cache = tmp_path / "hf-home" / "hub" / "models--user--repo"
    snapshot = shutil.copytree(folder, cache / "snapshots" / commit)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(commit)
    config = json.loads((snapshot / "config.json").read_text())
    config["auto_map"] = {name: f"user/repo--{entry}" for name, entry in config["auto_map"].items()}
    task = config["custom_pipelines"]["translation"]
    task["impl"] = f"user/repo--{task['impl']}"
    (snapshot / "config.json").write_text(json.dumps(config))
    answer = in_a_fresh_process(
        tmp_path,
        WITHOUT_PACKAGE,
        """
pipe = pipeline("translation", model=folder, trust_remote_code=True)
answer = {"texts": texts(pipe)}
pipe.save_pretrained(out + "/saved")
answer["from_saved"] = texts(pipeline("translation", model=out + "/saved", trust_remote_code=True))
""",
        "user/repo",
        HF_HUB_OFFLINE="1",
    )
    assert answer["texts"] == answer["from_saved"] == translations
    assert contents(tmp_path / "saved") == contents(folder)
