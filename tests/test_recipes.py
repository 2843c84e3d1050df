"""Every recipe loads and can be reckoned without its data's text; the WMT page and the sweeps say what they are."""

import re
import sys
from pathlib import Path

import pytest
import yaml
from accelerate.commands.config.config_args import ClusterConfig

from vanilla_transformer.configuration.presets import PRESETS
from vanilla_transformer.training.dry_run import dry_run, told
from vanilla_transformer.training.recipe import load_recipe

ROOT = Path(__file__).resolve().parent.parent
RECIPES = ROOT / "recipes"
PAGE = (ROOT / "docs" / "guide" / "wmt14.md").read_text(encoding="utf-8")


def trainings() -> list[str]:
    """The recipes of `train`; those of `compare` have other sections."""
    found = sorted(RECIPES.glob("*.yaml"))
    return [path.stem for path in found if "data" in yaml.safe_load(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("name", trainings())
def test_dry_run_of_every_recipe(name, shared_data):
    path = RECIPES / f"{name}.yaml"
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    for file in (data["data"]["corpus"], data.get("tokenizer", {}).get("codes", "")):
        if file.startswith("../shared/data/"):
            shared_data(file.removeprefix("../shared/data/"))
    recipe = load_recipe(path)
    plan = dry_run(recipe, processes=8)
    assert plan.tokens_per_update == (recipe.training.max_source_tokens, recipe.training.max_target_tokens)
    assert f"parameters: {plan.parameters:,}" in told(plan)


def test_the_published_multi30k_setting():
    """LividWo/Revisit-MMT, train.sh: transformer_tiny, 2 x 4,096 tokens, warm-up 2,000, rate 0.005, 10 checkpoints."""
    settings = yaml.safe_load((RECIPES / "multi30k-published.yaml").read_text(encoding="utf-8"))
    training, model = settings["training"], settings["model"]
    assert (model["num_encoder_layers"], model["d_model"], model["d_ff"], model["num_heads"]) == (4, 128, 256, 4)
    assert (training["max_source_tokens"], training["max_steps"], training["warmup_steps"]) == (8192, 8000, 2000)
    assert (training["average_last"], training["patience"], settings["generation"]["num_beams"]) == (10, 10, 5)
    assert training["save_every"] == training["eval_every"] == 58  # an epoch, as multi30k-en-de.json counts it


@pytest.fixture
def sweep(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import sweep

    yield sweep
    for name in ("sweep", "result_files", "training_runs"):
        del sys.modules[name]


def test_table_3_is_every_preset_on_the_base_recipe(sweep):
    recipe, variants = sweep.variants(RECIPES / "sweeps" / "table3.yaml")
    assert recipe.resolve() == RECIPES / "wmt14-en-de-base.yaml"
    assert set(variants) == set(PRESETS)
    for name, settings in variants.items():
        loaded = load_recipe(recipe, settings)
        assert loaded.model.preset == name
        assert loaded.training.max_steps == (300_000 if name == "big" else 100_000)
    # Worked out by hand for V = 37,000 (facts of the paper): base 63,045,632, big 214,171,648 parameters.
    assert dry_run(load_recipe(recipe, variants["base"])).parameters == 63_045_632
    assert dry_run(load_recipe(recipe, variants["big"])).parameters == 214_171_648
    assert sweep.dev_options(RECIPES / "sweeps" / "table3.yaml") == [
        *("--testset", "wmt13", "--language-pair", "en-de", "--scoring", "paper")
    ]


def test_every_variant_of_our_sweep_loads(sweep, shared_data):
    shared_data("multi30k/tok")
    path = RECIPES / "sweeps" / "multi30k.yaml"
    recipe, variants = sweep.variants(path)
    plain = load_recipe(recipe)
    different = [name for name, settings in variants.items() if load_recipe(recipe, settings) != plain]
    assert different == [name for name in variants if name != "as-written"]
    options = sweep.dev_options(path)
    assert [Path(option).exists() for option in options if option.startswith("/")] == [True, True]
    assert "test" not in " ".join(options)  # what is chosen is chosen on dev


@pytest.mark.parametrize(
    ("name", "processes", "machines"), [("one_gpu", 1, 1), ("eight_gpus", 8, 1), ("several_nodes", 16, 2)]
)
def test_accelerate_reads_its_configs(name, processes, machines):
    config = ClusterConfig.from_yaml_file(str(RECIPES / "accelerate" / f"{name}.yaml"))
    assert (config.num_processes, config.num_machines) == (processes, machines)
    # The recipe decides the precision; one named here would contradict it.
    assert config.mixed_precision in (None, "no")


def test_the_page_s_hours_are_those_of_the_dry_run():
    rows = re.findall(r"^\| (wmt14-[\w-]+) \| ([\d.e+]+) \| ([\d.]+) \| ([\d.]+) \|", PAGE, flags=re.MULTILINE)
    assert len(rows) == 4
    for name, flops, a100, h100 in rows:
        plan = dry_run(load_recipe(RECIPES / f"{name}.yaml"))
        assert (f"{plan.flops:.3g}", f"{plan.hours['A100']:.1f}", f"{plan.hours['H100']:.1f}") == (flops, a100, h100)


def test_the_page_names_what_is_there():
    for path in set(re.findall(r"recipes/[\w/.-]+\.(?:yaml|sh)|benchmarks/\w+\.py", PAGE)):
        assert (ROOT / path).exists(), path
