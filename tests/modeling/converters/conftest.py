"""Models in other formats, made here or lying in the shared data."""

import gzip
import json
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="session")
def multi30k(shared_data) -> dict[str, list[str]]:
    """The first 1,000 pairs of Multi30k's training text, by language."""
    folder = shared_data("multi30k")
    return {
        language: gzip.decompress((folder / f"train.{language}.gz").read_bytes()).decode("utf-8").split("\n")[:1000]
        for language in ("en", "de")
    }


@pytest.fixture(scope="session")
def marian_folder(multi30k, tmp_path_factory) -> Path:
    """A small MarianMTModel saved as the opus-mt models are: their switches, a tokenizer of two SentencePiece files.

    The weights are random, but large enough that each of them matters.
    """
    import sentencepiece
    from transformers import GenerationConfig, MarianConfig, MarianMTModel, MarianTokenizer

    folder = tmp_path_factory.mktemp("marian")
    pieces: dict[str, None] = {}
    for name, language in (("source", "en"), ("target", "de")):
        lines = folder / f"{language}.txt"
        lines.write_text("\n".join(multi30k[language]), encoding="utf-8")
        sentencepiece.SentencePieceTrainer.train(
            input=str(lines), model_prefix=str(folder / name), vocab_size=400, minloglevel=2
        )
        (folder / f"{name}.model").rename(folder / f"{name}.spm")
        processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{name}.spm"))
        pieces |= dict.fromkeys(processor.id_to_piece(index) for index in range(processor.get_piece_size()))
    words = ["</s>", "<unk>", *(piece for piece in pieces if piece not in ("<s>", "</s>", "<unk>")), "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({word: index for index, word in enumerate(words)}), encoding="utf-8")
    tokenizer = MarianTokenizer(
        str(folder / "source.spm"),
        str(folder / "target.spm"),
        str(folder / "vocab.json"),
        source_lang="en",
        target_lang="de",
    )
    pad = words.index("<pad>")
    torch.manual_seed(5)
    marian = MarianMTModel(
        MarianConfig(
            vocab_size=len(words),
            d_model=32,
            encoder_layers=2,
            decoder_layers=3,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            activation_function="swish",
            scale_embedding=True,
            static_position_embeddings=True,
            max_position_embeddings=128,
            pad_token_id=pad,
            eos_token_id=0,
            forced_eos_token_id=0,
            decoder_start_token_id=pad,
            dropout=0.2,
        )
    )
    with torch.no_grad():
        for parameter in marian.parameters():
            if parameter.requires_grad:  # not the sinusoids
                parameter += 0.3 * torch.randn_like(parameter)
        marian.final_logits_bias += torch.randn_like(marian.final_logits_bias)
    marian.generation_config = GenerationConfig(
        num_beams=4,
        max_length=24,
        bad_words_ids=[[pad]],
        pad_token_id=pad,
        eos_token_id=0,
        decoder_start_token_id=pad,
        forced_eos_token_id=0,
    )
    saved = tmp_path_factory.mktemp("opus-mt-en-de")
    marian.save_pretrained(saved)
    tokenizer.save_pretrained(saved)
    return saved
