"""Items come in order, one ahead of the caller, and what making them raises comes in its place."""

import threading

import pytest

from vanilla_transformer.training.read_ahead import read_ahead

LONG = 60  # seconds that pass only where the test fails


def test_all_items_in_order():
    assert list(read_ahead(iter(range(100)))) == list(range(100))
    assert list(read_ahead(iter([]))) == []


def test_one_item_is_made_while_the_caller_works_and_no_more():
    made, second = [], threading.Event()

    def items():
        for number in range(4):
            made.append(number)
            if number == 1:
                second.set()
            yield number

    ahead = read_ahead(items())
    assert next(ahead) == 0
    assert second.wait(LONG)
    assert made == [0, 1]


def test_no_item_waits_for_the_one_behind_it():
    arrives = threading.Event()

    def items():
        yield "first"
        assert arrives.wait(LONG)
        yield "second"

    ahead = read_ahead(items())
    assert next(ahead) == "first"
    arrives.set()
    assert list(ahead) == ["second"]


def test_an_error_is_raised_behind_the_items_before_it():
    def items():
        yield 1
        raise ValueError("the second is broken")

    ahead = read_ahead(items())
    assert next(ahead) == 1
    with pytest.raises(ValueError, match="the second is broken"):
        next(ahead)
