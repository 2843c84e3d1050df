"""Decoding against searches written independently here: a greedy loop, brute force, a beam search in plain Python."""

import math
from collections import Counter

import pytest
import torch
from small_models import BOS, EOS, PAD, random_tokens, small_model, taught
from transformers import GenerationConfig
from transformers.generation import GenerationMixin

import vanilla_transformer as vt
from vanilla_transformer.modeling import generation_vanilla_transformer
from vanilla_transformer.modeling.generation_vanilla_transformer import GNMTPenalty

SUPPRESSED = (BOS, PAD)


@pytest.fixture(scope="module")
def model():
    """Ends most outputs by itself, some only at the cap."""
    return taught(small_model(seed=1, noise=0.0))


@pytest.fixture(scope="module")
def models(model):
    """The same model pushed off in several directions: none of the searches below is an easy one."""
    state = {name: weight.clone() for name, weight in model.state_dict().items()}
    shaken = []
    for seed in range(3):
        random = torch.Generator().manual_seed(seed)
        other = vt.VanillaTransformerForConditionalGeneration(model.config).eval()
        other.load_state_dict(
            {name: weight + 0.15 * torch.randn(weight.shape, generator=random) for name, weight in state.items()}
        )
        shaken.append(other)
    return shaken


@pytest.fixture(scope="module")
def sentences() -> list[list[int]]:
    return [random_tokens(1, length, seed=length)[0].tolist() + [EOS] for length in (7, 3, 5, 4, 1)]


def batch_of(sentences: list[list[int]]) -> dict[str, torch.Tensor]:
    length = max(map(len, sentences))
    ids = torch.tensor([row + [PAD] * (length - len(row)) for row in sentences])
    return {"input_ids": ids, "attention_mask": ids.ne(PAD).long()}


def content(row: torch.Tensor | list[int]) -> list[int]:
    """An output without its <s> and the padding after its </s>."""
    tokens = [int(token) for token in row][1:]
    while tokens and tokens[-1] == PAD:
        tokens.pop()
    return tokens


@torch.no_grad()
def next_log_probs(model, source: list[int], *prefixes: list[int]) -> torch.Tensor:
    """log p of the token after each of `prefixes`, all of one length, by a full forward pass: (prefixes, N)."""
    sources = torch.tensor([source] * len(prefixes))
    logits = model(input_ids=sources, decoder_input_ids=torch.tensor(prefixes)).logits[:, -1]
    return torch.log_softmax(logits.double(), -1)


def gnmt(length: int, alpha: float) -> float:
    """lp(Y) of Wu et al. 2016, equation 14."""
    return ((5 + length) / 6) ** alpha


def greedy(model, source: list[int], cap: int, prompt: tuple[int, ...] = (BOS,)) -> list[int]:
    tokens = list(prompt)
    while len(tokens) - len(prompt) < cap and tokens[-1] != EOS:
        log_p = next_log_probs(model, source, tokens)[0]
        log_p[list(SUPPRESSED)] = -math.inf
        tokens.append(int(log_p.argmax()))
    return tokens[1:]


def beam_search(model, source: list[int], beams: int, alpha: float, cap: int, returned: int = 1, penalty=gnmt):
    """[(score, tokens)], best first. Each step looks at the 2 * beams best extensions of the open hypotheses; those
    among the first `beams` that end, by </s> or at the cap, are finished; the best `beams` others stay open."""
    open_hypotheses, finished = [(0.0, [BOS])], []
    for length in range(1, cap + 1):
        log_probs = next_log_probs(model, source, *(tokens for _, tokens in open_hypotheses)).tolist()
        extensions = [
            (total + log_p, [*tokens, token])
            for (total, tokens), row in zip(open_hypotheses, log_probs, strict=True)
            for token, log_p in enumerate(row)
            if token not in SUPPRESSED
        ]
        extensions.sort(key=lambda hypothesis: -hypothesis[0])
        extensions = extensions[: 2 * beams]
        ended = [tokens[-1] == EOS or length == cap for _, tokens in extensions]
        finished += [
            (total / penalty(length, alpha), tokens[1:])
            for (total, tokens), end in list(zip(extensions, ended, strict=True))[:beams]
            if end
        ]
        open_hypotheses = [e for e, end in zip(extensions, ended, strict=True) if not end][:beams]
    finished.sort(key=lambda hypothesis: -hypothesis[0])
    return finished[:returned]


def test_the_saved_settings_are_the_papers(model, tmp_path):
    """Section 6.1: beam 4, alpha 0.6 as in Wu et al., input length + 50; here also after a save."""
    model.save_pretrained(tmp_path)
    for config in (
        model.generation_config,
        vt.VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path).generation_config,
        GenerationConfig.from_pretrained(tmp_path),
    ):
        assert (config.num_beams, config.length_penalty, config.length_penalty_type) == (4, 0.6, "gnmt")
        assert config.max_new_tokens_over_input == 50
        assert config.early_stopping == "never"
        assert set(config.suppress_tokens) == {BOS, PAD}
        assert (config.bos_token_id, config.pad_token_id, config.eos_token_id) == (BOS, PAD, EOS)
        assert config.decoder_start_token_id == BOS
        assert not config.do_sample


def test_penalty_is_equation_14():
    # ((5 + 10) / 6) ** 0.6 = 2.5 ** 0.6 = 1.7329 by hand
    assert 10 ** GNMTPenalty(0.6) == pytest.approx(1.7329, abs=5e-5)
    assert 1 ** GNMTPenalty(0.6) == 1.0
    assert 7 ** GNMTPenalty(0.0) == 1.0


@pytest.mark.parametrize("use_cache", [True, False])
def test_greedy_is_a_loop_of_argmax(model, models, sentences, use_cache):
    for each in (model, *models):
        outputs = each.generate(**batch_of(sentences), num_beams=1, max_new_tokens=10, use_cache=use_cache)
        assert [content(row) for row in outputs] == [greedy(each, source, cap=10) for source in sentences]


def test_beam_search_wide_enough_finds_the_best_of_all_sequences():
    """5 tokens (3 that may be written and </s>), at most 4 long: 1 + 3 + 9 + 27 ended and 81 * 4 capped sequences."""
    V, cap, alpha = 6, 4, 0.6
    for seed in range(3):
        model = small_model(seed=seed, noise=0.6, vocab_size=V, output_bias=True)
        source = [3, 5, 4, 3, EOS]
        scored = []

        def grow(tokens: list[int], total: float, model=model, source=source, scored=scored) -> None:
            for token, log_p in enumerate(next_log_probs(model, source, tokens)[0].tolist()):
                if token in SUPPRESSED:
                    continue
                grown = [*tokens, token]
                if token == EOS or len(grown) - 1 == cap:
                    scored.append(((total + log_p) / gnmt(len(grown) - 1, alpha), grown[1:]))
                else:
                    grow(grown, total + log_p)

        grow([BOS], 0.0)
        scored.sort(key=lambda hypothesis: -hypothesis[0])
        assert len(scored) == (1 + 3 + 9) + 27 * 4
        outputs = model.generate(
            input_ids=torch.tensor([source]),
            num_beams=60,
            num_return_sequences=5,
            max_new_tokens=cap,
            return_dict_in_generate=True,
            output_scores=True,
        )
        assert [content(row) for row in outputs.sequences] == [tokens for _, tokens in scored[:5]]
        expected = torch.tensor([score for score, _ in scored[:5]])
        torch.testing.assert_close(outputs.sequences_scores, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("beams", "alpha", "over_input"), [(4, 0.6, 2), (4, 0.6, 8), (2, 0.6, 8), (3, 1.5, 5), (4, 0.0, 5)]
)
def test_beam_search_equals_an_independent_one(models, sentences, beams, alpha, over_input):
    for each in models:
        outputs = each.generate(
            **batch_of(sentences),
            num_beams=beams,
            length_penalty=alpha,
            max_new_tokens_over_input=over_input,
            num_return_sequences=beams,
            return_dict_in_generate=True,
            output_scores=True,
        )
        rows = [content(row) for row in outputs.sequences]
        for b, source in enumerate(sentences):
            expected = beam_search(each, source, beams, alpha, cap=len(source) + over_input, returned=beams)
            mine = slice(b * beams, (b + 1) * beams)
            assert rows[mine] == [tokens for _, tokens in expected]
            scores = torch.tensor([score for score, _ in expected])
            torch.testing.assert_close(outputs.sequences_scores[mine], scores, rtol=1e-4, atol=1e-5)


def test_power_penalty_equals_an_independent_search_with_it(models, sentences):
    for each in models[:2]:
        outputs = each.generate(
            **batch_of(sentences), num_beams=3, length_penalty_type="power", max_new_tokens_over_input=4
        )
        expected = [
            beam_search(each, source, 3, 0.6, len(source) + 4, penalty=lambda n, alpha: n**alpha)[0][1]
            for source in sentences
        ]
        assert [content(row) for row in outputs] == expected


def test_the_penalties_differ_on_these_models(models, sentences):
    """Else the tests above would not tell them apart."""
    outputs = [
        [content(row) for each in models for row in each.generate(**batch_of(sentences), length_penalty_type=kind)]
        for kind in ("gnmt", "power")
    ]
    assert outputs[0] != outputs[1]


@pytest.mark.parametrize(
    "search", [{}, {"num_beams": 1}, {"num_return_sequences": 4}], ids=["paper", "greedy", "n-best"]
)
def test_a_batch_equals_one_by_one(models, sentences, search):
    for each in models[:2]:
        together = [content(row) for row in each.generate(**batch_of(sentences), **search)]
        alone = [content(row) for source in sentences for row in each.generate(**batch_of([source]), **search)]
        assert together == alone
        # The cap is the sentence's own: longer ones beside it do not lend it theirs.
        returned = len(together) // len(sentences)
        for row, tokens in enumerate(together):
            assert len(tokens) <= len(sentences[row // returned]) + 50


def test_some_sentence_is_stopped_at_its_own_cap(models, sentences):
    lengths = set()
    for each in models:
        outputs = each.generate(**batch_of(sentences), max_new_tokens_over_input=2)
        for source, tokens in zip(sentences, map(content, outputs), strict=True):
            lengths.add((len(tokens) - len(source), tokens[-1] == EOS))
    assert (2, False) in lengths and any(ended for _, ended in lengths)


def test_an_explicit_length_takes_the_place_of_the_cap(model, sentences):
    def longest(**settings):
        rows = model.generate(**batch_of(sentences), num_beams=1, suppress_tokens=[BOS, PAD, EOS], **settings)
        return {len(content(row)) for row in rows}

    assert longest(max_new_tokens=6) == {6}
    assert longest(max_length=6) == {5}  # counts <s>
    assert longest(generation_config=GenerationConfig(max_new_tokens=7)) == {7}
    assert longest(max_new_tokens_over_input=3) == {len(source) + 3 for source in sentences}


def test_neither_pad_nor_start_is_ever_written(models, sentences):
    for each in models:
        with torch.no_grad():  # a model that likes nothing more
            each.model.decoder.layers[-1].feed_forward_residual.norm.bias += 3 * each.lm_head.weight[PAD]
        try:
            for search in ({}, {"num_beams": 1}, {"num_beams": 1, "do_sample": True}):
                outputs = each.generate(**batch_of(sentences), **search, max_new_tokens=12)
                for row in outputs:
                    assert not {BOS, PAD} & set(content(row))
        finally:
            with torch.no_grad():
                each.model.decoder.layers[-1].feed_forward_residual.norm.bias -= 3 * each.lm_head.weight[PAD]


@pytest.mark.parametrize("kind", ["gnmt", "power"])
@pytest.mark.parametrize("returned", [1, 3])
def test_stopping_early_changes_nothing_and_stops_early(models, sentences, kind, returned, monkeypatch):
    search = {
        "num_beams": 4,
        "num_return_sequences": returned,
        "length_penalty_type": kind,
        "return_dict_in_generate": True,
        "output_scores": True,
    }
    models = models[:2]
    quick = [each.generate(**batch_of(sentences), **search) for each in models]

    def never(is_early_stop_heuristic_unsatisfied, **_):
        return is_early_stop_heuristic_unsatisfied  # as it came: no sentence is ever given up before the cap

    monkeypatch.setattr(
        generation_vanilla_transformer.PaperGenerationMixin, "_check_early_stop_heuristic", staticmethod(never)
    )
    full = [each.generate(**batch_of(sentences), **search) for each in models]
    for ours, theirs in zip(quick, full, strict=True):
        assert [content(row) for row in ours.sequences] == [content(row) for row in theirs.sequences]
        torch.testing.assert_close(ours.sequences_scores, theirs.sequences_scores, rtol=0, atol=0)
    steps = [sum(len(outputs.scores) for outputs in results) for results in (quick, full)]
    assert steps[1] == len(models) * (8 + 50)  # to the cap of the longest sentence
    assert steps[0] < steps[1]


def test_n_best_scores_are_their_sequences_scores(model, sentences):
    """Scores of the n-best list, recomputed by forcing each output through the model."""
    outputs = model.generate(
        **batch_of(sentences), num_return_sequences=4, return_dict_in_generate=True, output_scores=True
    )
    for row, (tokens, score) in enumerate(zip(outputs.sequences, outputs.sequences_scores, strict=True)):
        source, tokens = sentences[row // 4], content(tokens)
        total = sum(
            next_log_probs(model, source, [BOS, *tokens[:position]])[0, token].item()
            for position, token in enumerate(tokens)
        )
        assert score.item() == pytest.approx(total / gnmt(len(tokens), 0.6), rel=1e-4)
    scores = outputs.sequences_scores.view(-1, 4)
    assert (scores.diff(dim=1) <= 0).all()
    rows = [tuple(content(row)) for row in outputs.sequences]
    assert all(len(set(rows[b : b + 4])) == 4 for b in range(0, len(rows), 4))


def test_an_explicit_generation_config_keeps_what_it_does_not_say(models, sentences):
    given = GenerationConfig(num_beams=2)
    before = given.to_dict()
    for each in models[:2]:
        outputs = each.generate(**batch_of(sentences[:3]), generation_config=given)
        expected = [beam_search(each, source, 2, 0.6, cap=len(source) + 50)[0][1] for source in sentences[:3]]
        assert [content(row) for row in outputs] == expected
    assert given.to_dict() == before


def test_settings_work_where_the_saved_config_has_none_of_them(models, sentences):
    plain = GenerationConfig(pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=BOS, suppress_tokens=[BOS, PAD])
    settings = {
        "num_beams": 3,
        "length_penalty": 0.6,
        "length_penalty_type": "gnmt",
        "max_new_tokens_over_input": 4,
        "early_stopping": "never",
    }
    for each in models[:2]:
        expected = [content(row) for row in each.generate(**batch_of(sentences), **settings)]
        saved, each.generation_config = each.generation_config, plain
        try:
            assert [content(row) for row in each.generate(**batch_of(sentences), **settings)] == expected
        finally:
            each.generation_config = saved


def test_an_unknown_penalty_is_an_error_that_names_the_known(model, sentences):
    with pytest.raises(ValueError, match="length_penalty_type = 'google': choose gnmt or power"):
        model.generate(**batch_of(sentences), length_penalty_type="google")


def test_beam_search_without_the_cache_is_the_same(models, sentences):
    for each in models:
        with_cache, without = (
            each.generate(**batch_of(sentences), max_new_tokens=12, use_cache=use_cache) for use_cache in (True, False)
        )
        assert with_cache.tolist() == without.tolist()


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@torch.no_grad()
def test_hypotheses_of_a_sentence_share_its_keys_and_values(sentences, implementation):
    model = small_model(seed=1, attn_implementation=implementation)
    batch = batch_of(sentences)
    settings = {"num_beams": 3, "max_new_tokens": 4, "return_dict_in_generate": True, "output_attentions": True}
    output = model.generate(**batch, **settings)
    assert output.cache.cross_attention_cache.layers[0].keys.shape[0] == 5
    assert output.cache.self_attention_cache.layers[0].keys.shape[0] == 15
    # A row for each hypothesis gives the same logits and weights.
    ids = random_tokens(15, 4)
    mask, encoded = batch["attention_mask"], model.model.encoder(**batch).last_hidden_state
    shared = {"encoder_outputs": (encoded,), "attention_mask": mask}
    copied = {name: value.repeat_interleave(3, 0) for name, value in (("x", encoded), ("attention_mask", mask))}
    copied["encoder_outputs"] = (copied.pop("x"),)
    one, other = [model(decoder_input_ids=ids, output_attentions=True, **given) for given in (shared, copied)]
    torch.testing.assert_close(one.logits, other.logits, rtol=1e-5, atol=1e-5)
    for layer, expected in zip(one.cross_attentions, other.cross_attentions, strict=True):
        torch.testing.assert_close(layer, expected, rtol=1e-5, atol=1e-6)


def test_source_masks_are_found_where_none_is_given(models, sentences):
    batch = batch_of(sentences)
    for each in models:
        expected = each.generate(**batch).tolist()
        assert each.generate(input_ids=batch["input_ids"]).tolist() == expected
        assert each.generate(batch["input_ids"]).tolist() == expected
        encoded = each.model.encoder(**batch)
        assert each.generate(encoder_outputs=encoded, attention_mask=batch["attention_mask"]).tolist() == expected


PROMPTS = [[7, 9, 4], [6], [5, 5], [8, 10, 12], []]


@pytest.mark.parametrize("start", ["with-start", "without-start", "extra-pads"])
@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("use_cache", [True, False])
def test_prompts_of_several_lengths_continue_as_if_alone(model, sentences, start, beams, use_cache):
    rows = [prompt if start == "without-start" else [BOS, *prompt] for prompt in PROMPTS]
    length = max(map(len, rows)) + (2 if start == "extra-pads" else 0)
    prompts = torch.tensor([[PAD] * (length - len(row)) + row for row in rows])
    search = {"num_beams": beams, "max_new_tokens": 8, "use_cache": use_cache}
    outputs = model.generate(**batch_of(sentences), decoder_input_ids=prompts, **search)
    for row, source, prompt in zip(outputs, sentences, PROMPTS, strict=True):
        alone = model.generate(**batch_of([source]), decoder_input_ids=torch.tensor([[BOS, *prompt]]), **search)[0]
        tokens = [token for token in row.tolist() if token not in SUPPRESSED]
        assert tokens == [token for token in alone.tolist() if token not in SUPPRESSED]
        assert tokens[: len(prompt)] == prompt
        if beams == 1:
            assert tokens == greedy(model, source, cap=8, prompt=(BOS, *prompt))


def test_learned_positions_stop_generation_where_they_end(sentences):
    learned = {"positional_encoding": "learned", "max_source_positions": 8, "max_target_positions": 10}
    model = small_model(seed=1, **learned)
    outputs = model.generate(**batch_of(sentences), suppress_tokens=[BOS, PAD, EOS])
    assert {len(content(row)) for row in outputs} == {10}
    assert content(outputs[0]) == content(model.generate(**batch_of(sentences[:1]), suppress_tokens=[BOS, PAD, EOS])[0])


def test_sampling_is_reproducible_by_seed(model, sentences):
    def sample(seed):
        torch.manual_seed(seed)
        return model.generate(**batch_of(sentences), do_sample=True, num_beams=1, max_new_tokens=10).tolist()

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)


def test_sampling_follows_the_models_distribution():
    """Chi-square of 4,000 first-two-token outcomes on a vocabulary with 4 that may be written."""
    model = small_model(seed=2, noise=0.6, vocab_size=6, output_bias=True)
    source, draws = [3, 5, 4, EOS], 4000
    expected: dict[tuple[int, ...], float] = {}

    def allowed(prefix):
        log_p = next_log_probs(model, source, prefix)[0]
        log_p[list(SUPPRESSED)] = -math.inf  # and the rest renormalised
        return torch.softmax(log_p, -1).tolist()

    for first, p in enumerate(allowed([BOS])):
        if first == EOS:
            expected[(EOS,)] = p
        elif p:
            expected |= {(first, second): p * q for second, q in enumerate(allowed([BOS, first])) if q}
    assert sum(expected.values()) == pytest.approx(1) and len(expected) == 1 + 3 * 4
    torch.manual_seed(0)
    outputs = model.generate(
        **batch_of([source]), do_sample=True, num_beams=1, top_k=0, num_return_sequences=draws, max_new_tokens=2
    )
    counts = Counter(tuple(content(row)) for row in outputs)
    assert set(counts) <= set(expected)
    statistic = sum((counts[outcome] - draws * p) ** 2 / (draws * p) for outcome, p in expected.items())
    assert statistic < 32.9  # chi-square, 12 degrees of freedom, p = 0.001


def test_returned_sequences_of_sampling_have_their_own_cap(model, sentences):
    torch.manual_seed(0)
    outputs = model.generate(
        **batch_of(sentences),
        do_sample=True,
        num_beams=1,
        num_return_sequences=3,
        max_new_tokens_over_input=2,
        suppress_tokens=[BOS, PAD, EOS],
    )
    assert [len(content(row)) for row in outputs] == [len(source) + 2 for source in sentences for _ in range(3)]


def test_transformers_own_stopping_rules_still_hold(models, sentences):
    """early_stopping = True and False are transformers' searches, only with GNMT's penalty."""
    for rule in (True, False):
        for each in models:
            outputs = each.generate(**batch_of(sentences), early_stopping=rule, max_new_tokens=12)
            plain = GenerationMixin.generate(
                each,
                **batch_of(sentences),
                early_stopping=rule,
                max_new_tokens=12,
                length_penalty=GNMTPenalty(0.6),
            )
            assert outputs.tolist() == plain.tolist()
