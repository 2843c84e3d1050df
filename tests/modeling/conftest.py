"""A model small enough to learn six sentences by heart in seconds, so that tests know its translations."""

import json
from types import SimpleNamespace

import pytest

PAIRS = {
    "Connect to the device.": "连接到设备。",
    "The battery is low.": "电池电量低。",
    "Turn on the light, please!": "请开灯！",
    "Unknown": "未知",
    "No.": "否。",
    "The device is connected to the network and the light is on.": "设备已连接到网络，灯已打开。",
}


@pytest.fixture(scope="session")
def memorised() -> SimpleNamespace:
    """model (float32, eval mode), tokenizer and pairs: for each source the translation that the model has learned."""
    import torch

    import vanilla_transformer as vt

    torch.manual_seed(1)
    tokenizer = _tokenizer([*PAIRS, *PAIRS.values()])
    config = vt.VanillaTransformerConfig(
        vocab_size=len(tokenizer),
        d_model=32,
        d_ff=64,
        num_heads=4,
        num_encoder_layers=2,
        num_decoder_layers=2,
        dropout=0.0,
        source_lang="en",
        target_lang="zh",
    )
    model = vt.VanillaTransformerForConditionalGeneration(config)
    batch = tokenizer(list(PAIRS), text_target=list(PAIRS.values()), padding=True, return_tensors="pt")
    batch["labels"][batch["labels"] == tokenizer.pad_token_id] = -100
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, betas=(0.9, 0.98))
    for _ in range(150):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return SimpleNamespace(model=model.eval(), tokenizer=tokenizer, pairs=PAIRS)


def _tokenizer(texts: list[str]):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    # As the package's own: metaspace, and bytes for what the merges do not know.
    bpe = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    bpe.pre_tokenizer = pre_tokenizers.Metaspace()
    bpe.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(), decoders.Fuse()])
    special = ["<s>", "<pad>", "</s>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    bpe.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=360, special_tokens=special, show_progress=False))
    # The trainer knows no other way to bytes than as special tokens, which decoding would leave out.
    state = json.loads(bpe.to_str())
    state["added_tokens"] = state["added_tokens"][:4]
    bpe = Tokenizer.from_str(json.dumps(state))
    bpe.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_input_names=["input_ids", "attention_mask"],
    )
