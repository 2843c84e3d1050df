"""The page beside conversions.json."""

from typing import Any

REPORT = """\
# Conversions

{lines} lines of text, {date}, {processor}, {threads} thread(s); versions and searches are in conversions.json. Repeat:

    {command}

| bridge | largest difference | of logits that spread by | identical translations |
|---|---|---|---|
{rows}

- A difference is that of logits over every token of the model's own translations; to CTranslate2, which gives no
  logits, of the tokens' log-probabilities.
- Translations are compared under one search that both sides can be told. Under the nearest to the paper's search,
  {marian} of {lines} are the same in MarianMTModel and {engine} in CTranslate2: neither has GNMT's length penalty.
- MarianMTModel computes its layer norms with another epsilon than this model's, hence its larger difference.
- JoeyNMT's classes computed with this model's weights and random biases. Its beam search, which ends by a rule of its
  own, gave {joeynmt} of {lines} identical translations; the table has greedy decoding.
- from_ctranslate2_pre_norm_opennmt_tf is the engine's own test model, on random words of its source letters.
- Not measured: published opus-mt weights (a model of their size with random weights stands in), GPUs, bfloat16.
"""


def report(result: dict[str, Any]) -> str:
    """The page beside the JSON."""
    bridges, of, rows = result["bridges"], result["lines"], []
    for name, found in bridges.items():
        gap = found.get("largest_logit_difference", found.get("largest_log_probability_difference"))
        spread = found.get("standard_deviation_of_logits")
        count = found.get("identical_translations", found.get("identical_to_float32"))
        rows.append(
            f"| {name} | {'' if gap is None else f'{gap:.1e}'} | {'' if spread is None else f'{spread:.2f}'} | "
            f"{'' if count is None else f'{count} of {of}'} |"
        )
    return REPORT.format(
        **result | result["hardware"],
        rows="\n".join(rows),
        marian=bridges["to_marian"]["identical_to_the_paper_s_search"],
        engine=bridges["to_ctranslate2_float32"]["identical_to_the_paper_s_search_with_length_penalty_0.6"],
        joeynmt=bridges.get("from_joeynmt", {}).get("identical_translations_by_beam_search", "not measured"),
    )
