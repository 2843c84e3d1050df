import logging

import pytest

from vanilla_transformer.training.redaction import RedactedRecord, holds_secret, redacted

TOKEN = "hf_" + "aB3" * 11 + "x"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"Bearer {TOKEN}, refused", "Bearer hf_***, refused"),
        (f"https://user:{TOKEN}@host/org/repo", "https://***@host/org/repo"),
        ("https://user:pass@host:8080/x and ftp://name@host", "https://***@host:8080/x and ftp://***@host"),
        ("https:/user:pass@host/x: no such file", "https:/***@host/x: no such file"),  # as pathlib writes it
    ],
)
def test_tokens_and_logins_are_masked(text, shown):
    assert redacted(text) == shown
    assert holds_secret(text)
    assert redacted(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "data/hf_datasets/multi30k",
        "me@example.org wrote https://host/path/@name",
        "hf_transfer and hf_xet",
        "C:/Users/me: see user/repo@main",
        "",
    ],
)
def test_other_text_is_left_alone(text):
    assert redacted(text) == text
    assert not holds_secret(text)


def test_the_value_of_a_variable_is_masked_unless_it_is_a_mere_word(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "s3cr3t-of-another-kind")
    assert redacted("sent s3cr3t-of-another-kind.") == "sent ***."
    monkeypatch.setenv("HF_TOKEN", "none")
    assert redacted("there is none") == "there is none"


def test_log_records_are_masked_with_their_tracebacks():
    try:
        raise ValueError(f"no entry for {TOKEN}")
    except ValueError as error:
        record = RedactedRecord("x", logging.ERROR, __file__, 1, "sent %s", (TOKEN,), (type(error), error, None))
    assert logging.Formatter().format(record) == "sent hf_***\nValueError: no entry for hf_***"
