"""The sentences about the ladder's numbers turn with the numbers: each of their outcomes, from rows made for it."""

import re
from pathlib import Path

import ladder_rows
import pytest
from ladder_rows import ablated, layers, losses, recalled, timed, trained, translated

from vanilla_transformer.training.ladder.ablated_models import ABLATIONS

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def note():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        from why_transformer_notes import NOTES

        yield lambda key, rows, language="en": NOTES[key][1](rows, language)


@pytest.mark.parametrize("key", ["length", "translation", "ablations", "recall", "pronoun"])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_note_has_no_word_of_the_other_language(note, key, language):
    study = "translation" if key == "length" else key
    text = note(key, list(ladder_rows.studies()[study].values()), language)
    assert bool(re.search("[一-鿿]", text)) == (language == "zh")
    if language == "zh":
        assert not re.search(r"[a-z]{2,} [a-z]{2,}", text)


# Of lstm and lstm-attention in the shortest and in the longest sentences, with half-widths of 1: the noise of a
# difference of differences is sqrt(4) = 2.
@pytest.mark.parametrize(
    "short, long, half, en, zh",
    [
        ((30.0, 31.0), (10.0, 13.1), 1.0, "the one vector is too little", "一个向量在这里确实不够用"),
        ((30.0, 31.0), (10.0, 12.9), 1.0, "neither shows the bottleneck", "也不能排除瓶颈"),
        ((30.0, 35.0), (10.0, 12.9), 1.0, "does not show the bottleneck", "没有表现出"),
        ((30.0, 31.0), (10.0, 13.1), 1.2, "neither shows the bottleneck", "也不能排除瓶颈"),
    ],
)
def test_length(note, short, long, half, en, zh):
    names = ("lstm", "lstm-attention")
    rows = [translated(name, 1, *at, half) for name, *at in zip(names, short, long, strict=True)]
    text = note("length", rows)
    assert en in text and f"{short[1]:.1f} BLEU in the shortest sentences and {long[1]:.1f}" in text
    assert zh in note("length", rows, "zh")


def test_translation_says_whether_the_first_two_can_be_told_apart(note):
    def of(best: float) -> str:
        scores = {"lstm": 10.0, "gru": 12.0, "lstm-attention": 20.0, "transformer": best}
        return note("translation", [translated(name, 1, at, at) for name, at in scores.items()])

    near, far = of(21.9), of(22.1)
    assert (
        "transformer 22.00, lstm-attention 20.10, gru 12.10, lstm 10.10. The intervals of the first two overlap" in near
    )
    assert "lie apart" in far and "Every recurrent system with attention is above" in far
    # 9876 and the length of the name; one seed.
    assert "quickest with lstm-attention, 9,890 tokens/s on this machine; the Transformer does 9,887." in far


def test_ablations_name_what_is_lost_what_is_not_and_who_cheats(note):
    rows = [ablated("whole", 2.0, 30.0), ablated("one head", 2.1, 30.5), ablated("without positions", 3.0, 12.0)]
    rows += [ablated("without layer norm", None, None), ablated("without decoder mask", 0.25, 0.5)]
    text = note("ablations", rows)
    assert "The whole model has 30 BLEU. Below it, the greatest loss first: " in text
    assert "without decoder mask 0.5, without positions 12. Not below it: one head 30.5." in text
    assert "not finite: without layer norm. One run of each" in text
    assert "the loss is 0.25 beside 2, and BLEU 0.5 beside 30: it reads the answer in training, and fails" in text
    honest = note("ablations", [*rows[:3], ablated("without decoder mask", 2.5, 0.5)])
    assert "these runs do not show both" in honest and "not finite" not in honest
    assert "去掉解码器掩码 0.5、去掉位置编码 12" in note("ablations", rows, "zh")
    assert set(ABLATIONS) >= {row["ablation"] for row in rows}


@pytest.mark.parametrize(
    "reached, verdict, attention",
    [
        ({"lstm": 4, "lstm-attention": 64, "transformer": 512}, "reaches further than every", "further than lstm"),
        ({"lstm": 64, "lstm-attention": 64, "transformer": 64}, "at least one as far", "just as far as lstm"),
        ({"lstm": 64, "lstm-attention": 4, "transformer": 0}, "A recurrent system reaches", "less far than lstm"),
    ],
)
def test_recall(note, reached, verdict, attention):
    text = note("recall", [recalled(name, seed, k) for name, k in reached.items() for seed in (1, 2)])
    assert text.startswith("Guessing is right in 0.0625 of the questions.")
    assert verdict in text and f"lstm-attention reaches {attention}." in text
    assert f"to k = {reached['lstm']} (lstm)" in text
    assert ("at no k: transformer" in text) == (reached["transformer"] == 0)


def test_pronouns_known_by_heart_are_told_from_learnt_ones(note):
    rows = []
    for name, new in (("lstm", -1), ("transformer", 4)):
        row = trained(name, 1)
        for column, reached in (("en", new), ("zh", new), ("en_known", 4), ("zh_known", -1)):
            row[column] = ladder_rows.answers(reached, (0, 4, 16))
        rows.append(row)
    english, chinese = note("pronoun", rows).splitlines()
    assert english.endswith("up to k = 4 (transformer); at no k: lstm. Only for pairs known from training: lstm.")
    assert chinese.endswith("up to k = 4 (transformer); at no k: lstm.")


def test_parallelism_counts_and_times_each_device(note):
    rows = [
        {"system": name, "counted": "training", "n": n, "products": products}
        for name, counts in (("lstm-attention", (30, 1200)), ("transformer", (90, 90)))
        for n, products in zip((4, 256), counts, strict=True)
    ]
    rows += [timed("transformer", "training", n, seconds) for n, seconds in ((16, 0.5), (256, 3.0))]
    rows += [timed("lstm-attention", "training", n, seconds) for n, seconds in ((16, 0.75), (256, 2.5))]
    text = note("parallelism", rows)
    assert "the chain grows: lstm-attention from 30 to 1,200; it stays: transformer 90." in text
    assert "quicker at n = 16 (0.5 s beside 0.75 s of lstm-attention); not quicker at n = 256 (3 s beside 2.5 s" in text
    assert "No GPU was measured" in text
    rows += [timed(name, "training", 16, s, "H200") for name, s in (("transformer", 0.25), ("lstm-attention", 0.5))]
    text = note("parallelism", rows)
    assert "on H200" in text and "No GPU" not in text
    assert "没有测 GPU" not in note("parallelism", rows, "zh")


def test_complexity_says_whether_the_crossing_is_where_the_formulas_have_it(note):
    rows = list(layers().values())
    text = note("complexity", rows)
    assert "from n = 32 for d = 32, n = 64 for d = 64. That is n = d, as the formulas say." in text
    # 8 n d^2 + 4 n^2 d beside 12 n d^2 and 16 n d^2
    assert "a GRU from n = 32 for d = 32, n = 64 for d = 64, and more than an LSTM from n = 64 for d = 32" in text
    # 4 n d (9 + the name's letters) at n = 256, d = 64, in MiB
    assert "Memory at n = 256 and d = 64, in MiB: rnn 0.75; gru 0.75; lstm 0.8125;" in text
    doubled = [{**row, "attention_flops": 2 * row["attention_flops"]} for row in rows]
    assert "That is not n = d" in note("complexity", doubled)
    assert "正是公式所说的" in note("complexity", rows, "zh") and "self" not in note("complexity", rows, "zh")


def test_scaling_compares_slopes_by_their_uncertainty(note):
    def rows(slopes, wave=1.0):
        sizes = ((250_000, 1.0), (1_000_000, wave), (4_000_000, 1.0))
        return [
            losses(name, asked, 1.0, 20 * (asked + 321) ** -slope * off)
            for name, slope in slopes.items()
            for asked, off in sizes
        ]

    text = note("scaling", rows({"lstm-attention": 0.05, "transformer": 0.15}))
    assert "The loss of the Transformer falls faster than that of lstm-attention." in text
    assert "lstm-attention -0.05 ±" in text and "transformer -0.15 ±" in text
    assert "lstm-attention falls faster" in note("scaling", rows({"lstm-attention": 0.15, "transformer": 0.05}))
    noisy = note("scaling", rows({"lstm-attention": 0.05, "transformer": 0.15}, wave=1.5))
    assert "do not differ by more than their uncertainty" in noisy
    assert "does not fall at all with lstm-attention" in note(
        "scaling", rows({"lstm-attention": -0.1, "transformer": 0.1})
    )
