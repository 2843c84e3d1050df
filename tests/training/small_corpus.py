"""A folder of pairs in which the target is the source backwards, for studies whose cells are trainings."""

import random
from pathlib import Path


def reversed_letters(folder: Path, sizes: dict[str, int] | None = None) -> Path:
    """train.tsv, dev.tsv and test.tsv in `folder`; no source stands twice."""
    folder.mkdir()
    draw, seen = random.Random(1), set[str]()
    for split, count in (sizes or {"train": 160, "dev": 10, "test": 10}).items():
        lines = []
        while len(lines) < count:
            letters = [draw.choice("abcdef") for _ in range(draw.randint(4, 7))]
            source = " ".join(letters)
            if source not in seen:
                seen.add(source)
                lines.append(f"{source}\t{' '.join(reversed(letters))}\n")
        (folder / f"{split}.tsv").write_text("".join(lines))
    return folder


def recipe(folder: Path) -> dict:
    """Sections of a study on that corpus that trains for some seconds."""
    return {
        "data": {"corpus": str(folder), "source_lang": "fwd", "target_lang": "rev"},
        "tokenizer": {"type": "words", "vocab_size": 20},
        "training": {
            **{"max_steps": 12, "max_source_tokens": 200, "max_target_tokens": 200, "learning_rate": 3e-3},
            **{"warmup_steps": 4, "log_every": 2, "eval_every": 6, "save_every": 6, "keep_last": 1, "average_last": 1},
        },
        "generation": {"num_beams": 1},
        "evaluation": {"metrics": ["bleu"], "dev_limit": 4},
        "transformer": {
            **{"d_model": 16, "d_ff": 32, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1},
            "dropout": 0.0,
        },
    }
