import pytest

from vanilla_transformer.configuration.errors import CorpusError
from vanilla_transformer.training.language_codes import language_matches, pick_language


@pytest.mark.parametrize(
    ("wanted", "available", "found"),
    [
        ("en", ("en-US", "en"), ("en",)),
        ("EN", ("de", "en"), ("en",)),
        ("zh_cn", ("zh-CN", "zh-TW"), ("zh-CN",)),
        ("en", ("de", "en-US", "EN_gb"), ("en-US", "EN_gb")),
        ("en-US", ("en", "de"), ("en",)),
        ("en-US", ("en-GB",), ()),
        ("en", ("eng", "e", ""), ()),
        ("sr", ("sr-Latn",), ("sr-Latn",)),
    ],
)
def test_best_kind_of_match_wins(wanted, available, found):
    assert language_matches(wanted, available) == found


def test_one_code_or_an_error_that_lists_what_is_there():
    assert pick_language("de", ["en", "de-DE"], "x") == "de-DE"
    with pytest.raises(CorpusError, match="x: no language 'fr'; found en, de"):
        pick_language("fr", ["en", "de"], "x")
    with pytest.raises(CorpusError, match="x: language 'zh' could be any of zh-Hans, zh-Hant"):
        pick_language("zh", ["zh-Hans", "zh-Hant"], "x")
