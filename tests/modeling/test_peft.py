"""Adapters of the peft library on our model: which parts they reach, what the loss makes of them, what is saved."""

import pytest
import torch
from small_models import random_tokens, small_model
from toy_trainer import Gradients, toy_pairs, toy_trainer, whole_batch

import vanilla_transformer as vt
from vanilla_transformer.training.lora import TARGET_MODULES

peft = pytest.importorskip("peft")

SHARINGS = ["all", "decoder", "none"]


def with_lora(model, modules=TARGET_MODULES, seed=0, **options):
    """The model with an adapter that says something: peft's own begins at nothing."""
    torch.manual_seed(seed)
    config = peft.LoraConfig(
        task_type=peft.TaskType.SEQ_2_SEQ_LM, r=4, lora_alpha=8, target_modules=list(modules), **options
    )
    adapted = peft.get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter += 0.1 * torch.randn_like(parameter)
    return adapted


def logits(model):
    batch = {"input_ids": random_tokens(2, 5), "decoder_input_ids": random_tokens(2, 4, seed=1)}
    with torch.no_grad():
        return model.eval()(**batch).logits


def learn(model, folder, **arguments):
    """A few updates on the toy pairs; returns the first update's gradients."""
    gradients = Gradients()
    defaults = {"max_steps": 4, "learning_rate": 0.01, "per_device_train_batch_size": 8}
    toy_trainer(folder, model, toy_pairs(), [gradients], **(defaults | arguments)).train()
    return gradients.seen[0]


@pytest.mark.parametrize("sharing", SHARINGS)
def test_an_adapter_learns_alone_is_saved_alone_and_merges_into_a_plain_model(tmp_path, sharing):
    base = small_model(embedding_sharing=sharing, output_bias=True)
    before = {name: weight.clone() for name, weight in base.state_dict().items()}
    model = with_lora(base)
    adapted = {name for name, module in base.named_modules() if hasattr(module, "lora_A")}
    # 2 encoder layers of 4 + 2 matrices, 2 decoder layers of 4 + 4 + 2
    assert len(adapted) == 2 * 6 + 2 * 10
    learn(model, tmp_path / "run")
    for name, weight in base.state_dict().items():
        if "lora_" not in name:
            assert torch.equal(weight, before[name.replace(".base_layer", "")]), name
    expected = logits(model)
    assert not torch.allclose(expected, logits(small_model(embedding_sharing=sharing, output_bias=True)))

    model.save_pretrained(tmp_path / "adapter")
    size = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert (tmp_path / "adapter" / "adapter_model.safetensors").stat().st_size < 4 * size + 20_000
    again = peft.PeftModel.from_pretrained(
        small_model(embedding_sharing=sharing, output_bias=True), str(tmp_path / "adapter")
    )
    assert torch.equal(logits(again), expected)

    merged = again.merge_and_unload()
    torch.testing.assert_close(logits(merged), expected, rtol=1e-4, atol=1e-5)
    merged.save_pretrained(tmp_path / "merged")
    plain = vt.VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "merged")
    assert plain.num_parameters() == small_model(embedding_sharing=sharing, output_bias=True).num_parameters()
    assert torch.equal(logits(plain), logits(merged))


def test_a_saved_base_and_its_adapter_load_by_one_call(tmp_path):
    base = small_model()
    base.save_pretrained(tmp_path / "base")
    base = vt.VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "base")
    model = with_lora(base)
    model.save_pretrained(tmp_path / "adapter")
    loaded = peft.AutoPeftModelForSeq2SeqLM.from_pretrained(str(tmp_path / "adapter"))
    assert torch.equal(logits(loaded), logits(model))
    ids = random_tokens(2, 5)
    assert torch.equal(loaded.generate(input_ids=ids), model.generate(input_ids=ids))


def test_accumulation_changes_no_gradient(tmp_path):
    one = learn(with_lora(small_model()), tmp_path, max_steps=1)
    eight = learn(
        with_lora(small_model()), tmp_path, max_steps=1, per_device_train_batch_size=1, gradient_accumulation_steps=8
    )
    assert one.keys() == eight.keys() and len(one) == 2 * 32
    for name, gradient in one.items():
        torch.testing.assert_close(eight[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("over", ["vocabulary", "others"])
@pytest.mark.parametrize("sharing", SHARINGS)
def test_an_adapter_on_the_softmax_is_part_of_the_loss(sharing, over):
    """Its gradient is that of the loss by definition, from the logits that it has a say in."""
    fields = {"embedding_sharing": sharing, "label_smoothing": 0.2, "label_smoothing_over": over, "output_bias": True}
    model = with_lora(small_model(**fields), ["lm_head"]).train()
    ids, labels = random_tokens(3, 5), random_tokens(3, 4, seed=1)
    labels[0, 2:] = -100
    adapter = [parameter for name, parameter in model.named_parameters() if "lora_" in name]
    loss = model(input_ids=ids, labels=labels).loss
    found = torch.autograd.grad(loss, adapter)

    log_p = model(input_ids=ids, labels=labels, compute_logits=True).logits.log_softmax(-1)
    kept = labels >= 0
    size = log_p.shape[-1]
    share = 0.2 / size if over == "vocabulary" else 0.2 / (size - 1)
    q = torch.full_like(log_p, share)
    peak = 0.8 + share if over == "vocabulary" else 0.8
    q.scatter_(-1, labels.clamp(min=0).unsqueeze(-1), peak)
    by_hand = -(q * log_p).sum(-1)[kept].sum() / kept.sum()
    torch.testing.assert_close(loss, by_hand)
    for gradient, expected in zip(found, torch.autograd.grad(by_hand, adapter), strict=True):
        assert expected.abs().max() > 1e-4
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.filterwarnings("ignore:Model with `tie_word_embeddings=True`", "ignore:Input and output embeddings")
def test_embeddings_to_save_are_copies_of_their_own_which_survive_saving_and_merging(tmp_path, sharing, caplog):
    """modules_to_save unties what was one matrix: three copies learn, and all three are in the merged folder."""
    model = with_lora(small_model(embedding_sharing=sharing), modules_to_save=["embed_tokens", "lm_head"])
    learn(model, tmp_path / "run")
    expected = logits(model)
    core = model.get_base_model()
    copies = [core.model.encoder.embed_tokens.weight, core.model.decoder.embed_tokens.weight, core.lm_head.weight]
    assert not any(torch.equal(one, other) for one, other in zip(copies, [*copies[1:], copies[0]], strict=True))

    model.save_pretrained(tmp_path / "adapter")
    again = peft.PeftModel.from_pretrained(small_model(embedding_sharing=sharing), str(tmp_path / "adapter"))
    assert torch.equal(logits(again), expected)
    merged = again.merge_and_unload()
    torch.testing.assert_close(logits(merged), expected, rtol=1e-4, atol=1e-5)
    merged.save_pretrained(tmp_path / "merged")
    plain = vt.VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(logits(plain), logits(merged))


def test_trained_layer_norms_ride_along(tmp_path):
    model = with_lora(small_model(), modules_to_save=["norm"])
    gradients = learn(model, tmp_path / "run")
    norms = [name for name in gradients if "modules_to_save" in name]
    assert len(norms) == 2 * (2 * 2 + 2 * 3)  # weight and bias of 2 norms a encoder layer, 3 a decoder layer
    model.save_pretrained(tmp_path / "adapter")
    again = peft.PeftModel.from_pretrained(small_model(), str(tmp_path / "adapter"))
    assert torch.equal(logits(again), logits(model))


def test_the_trainers_label_smoothing_reaches_an_adapter(tmp_path):
    """The loss that Trainer logs is the smoothed one by definition; an adapter of zeros changes nothing."""
    base = small_model(output_bias=True, label_smoothing=0.3)
    config = peft.LoraConfig(task_type=peft.TaskType.SEQ_2_SEQ_LM, r=4, target_modules=list(TARGET_MODULES))
    trainer = toy_trainer(
        tmp_path,
        peft.get_peft_model(base, config),
        toy_pairs(),
        label_smoothing_factor=0.2,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
    )
    trainer.train()
    expected, _ = whole_batch("Trainer's in place of the model's")
    assert trainer.state.log_history[0]["loss"] == pytest.approx(expected, rel=1e-4)
