import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vanilla_transformer.training.cleaning import (
    DROPPED,
    WORD,
    DigestSet,
    Rules,
    clean,
    hold_out,
    overlap_key,
    words,
)


def cleaned(pairs, rules=Rules(), held_out_sources=()):  # noqa: B008 - frozen
    held_out, counters = DigestSet(), {}
    for source in held_out_sources:
        hold_out(source, held_out)
    return list(clean(pairs, rules, held_out, counters)), counters


def test_each_reason_is_counted_once_and_the_rest_is_kept_in_order():
    pairs = [
        ("a", "A"),
        (None, "B"),
        ("", "B"),
        ("c", " \u3000"),
        ("d" * 21, "D"),
        ("a", "A"),
        ("a", "other"),  # another translation is another pair
        ("In  the TEST", "X"),
        ("e f g h", "E"),
        ("late", "L"),
        ("later", "L"),
        ("a", "A"),
    ]
    rules = Rules(max_characters=20, max_ratio=3, limit=3)
    kept, counters = cleaned(pairs, rules, ["in the test", ""])
    assert kept == [("a", "A"), ("a", "other"), ("late", "L")]
    assert counters == {
        "read": 12,
        "kept": 3,
        "missing_language": 1,
        "empty": 2,
        "over_long": 1,
        "ratio": 1,
        "test_overlap": 1,
        "duplicate": 2,
        "limit": 1,
    }


def test_every_rule_can_be_switched_off():
    pairs = [("x", "y"), ("x", "y"), ("a b c d e f g h", "z")]
    assert cleaned(pairs, Rules(drop_duplicates=False, drop_test_overlap=False), ["x"])[0] == pairs


@pytest.mark.parametrize(
    ("left", "right"),
    [("Caf\u00e9", "cafe\u0301"), ("a  b", " A\tb\u3000"), ("STRASSE", "stra\u00dfe"), ("\uff21", "\uff41")],
)
def test_overlap_ignores_composition_case_and_white_space(left, right):
    assert overlap_key(left) == overlap_key(right)
    assert cleaned([(left, "x")], held_out_sources=[right])[1]["test_overlap"] == 1


def test_overlap_keeps_punctuation_and_width_apart():
    assert overlap_key("a.") != overlap_key("a")
    assert overlap_key("\uff21") != overlap_key("A")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Connect to the device.", 4),
        ("\u8fde\u63a5\u5230\u8bbe\u5907", 5),
        ("\u8bbe\u5907 IP:8080\u3002", 3),
        ("\u0e01\u0e32 a", 3),
        (" ", 0),
    ],
)
def test_words_count_characters_where_words_have_no_spaces(text, count):
    # "IP:8080" with the full stop that follows is one word: full stops are no letters of the script
    assert words(text) == count


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_words_are_counted_alike_with_and_without_the_short_way(text):
    assert words(text) == len(WORD.findall(text))
    spaced = "".join(character for character in text if not "\u0e00" <= character)
    assert words(spaced) == len(spaced.split())


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 5)))
def test_digest_set_is_a_set(digests):
    ours, theirs = DigestSet(), set()
    for digest in digests:
        # 0 marks a free slot and is kept as 1
        assert ours.add(digest) == ((digest or 1) not in theirs)
        theirs.add(digest or 1)
        assert digest in ours
    assert len(ours) == len(theirs)
    assert all((digest in ours) == ((digest or 1) in theirs) for digest in range(10))


def test_digest_set_grows():
    digests = DigestSet()
    values = [(n * 0x9E3779B97F4A7C15) % 2**64 for n in range(1, 50_001)]
    assert all(digests.add(value) for value in values)
    assert len(digests) == 50_000 and not any(digests.add(value) for value in values)


texts = (
    st.none() | st.sampled_from(["", " ", "a", "b", "A", "a b c", "long " * 10, "\u6c34\u6c34"]) | st.text(max_size=8)
)
rule_sets = st.builds(
    Rules,
    max_characters=st.integers(1, 30),
    max_ratio=st.none() | st.floats(1, 5),
    drop_duplicates=st.booleans(),
    drop_test_overlap=st.booleans(),
    limit=st.none() | st.integers(1, 6),
)


@settings(deadline=None)
@given(st.lists(st.tuples(texts, texts)), rule_sets, st.lists(st.sampled_from(["a", "B", ""])))
def test_counters_add_up_and_order_is_kept(pairs, rules, held_out_sources):
    kept, counters = cleaned(pairs, rules, held_out_sources)
    assert counters["read"] == len(pairs) and counters["kept"] == len(kept)
    assert counters["read"] == counters["kept"] + sum(counters[name] for name in DROPPED)
    rest = iter(pairs)
    assert all(pair in rest for pair in kept)  # a subsequence: `in` consumes the iterator
    if rules.drop_duplicates:
        assert len(set(kept)) == len(kept)
