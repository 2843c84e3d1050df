"""docs/operations.md names keys, codes and defaults that exist."""

import dataclasses
import re
from pathlib import Path

import yaml

from vanilla_transformer.training.recipe_sections import Recipe, TrainingConfig
from vanilla_transformer.training.stopping import Preempted

TEXT = (Path(__file__).parent.parent / "docs" / "operations.md").read_text(encoding="utf-8")


def test_every_recipe_key_exists():
    sections = {field.name: field.default_factory for field in dataclasses.fields(Recipe) if field.name != "data"}
    named = set(re.findall(rf"\b({'|'.join(sections)})\.([a-z_]+)\b", TEXT)) - {("training", "train")}
    assert ("training", "write_retry_minutes") in named
    for section, key in named:
        assert hasattr(sections[section](), key), f"{section}.{key}"


def test_defaults_are_those_of_the_recipe():
    config = TrainingConfig()
    assert f"every `save_every` updates (default {config.save_every})" in TEXT
    assert f"`keep_last` ({config.keep_last})" in TEXT
    assert f"`training.write_retry_minutes` long (default {config.write_retry_minutes:g})" in TEXT
    # 12 P (keep_last + 2) + 16 P bytes, P as the paper's base and big have them (configuration, Table 3)
    for parameters, gigabytes in ((63_045_632, "6.3 GB"), (214_171_648, "21.4 GB")):
        assert f"{parameters * (12 * (config.keep_last + 2) + 16) / 1e9:.1f} GB" == gigabytes
        assert f"{parameters / 1e6:.1f} million: {gigabytes}" in TEXT


def test_the_kubernetes_job_starts_again_who_was_told_to_stop():
    (manifest,) = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL))
    rules = manifest["spec"]["podFailurePolicy"]["rules"]
    assert {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [Preempted.exit_code]}} in rules
    assert manifest["spec"]["template"]["spec"]["restartPolicy"] == "Never"
