"""The check of phrases that are a habit, tests/support/words.py."""

from tests.support.words import RATES, habits, prose

SOURCE = '''"""The sum is that of all rows."""

x = "that of a string"  # the order stays
# Of the
# two
'''


def test_docstrings_and_comments_are_read_and_strings_are_not():
    assert list(prose(SOURCE, True)) == [
        (1, "The sum is that of all rows."),
        (3, "the order stays\nOf the\ntwo"),
    ]
    assert list(prose("A page", False)) == [(1, "A page")]


def test_a_phrase_above_its_limit_is_shown_with_every_place():
    found = habits(
        {"a.py": SOURCE, "b.md": "Words.\n\nOf a\nThe row stands and\nthose of it lie\n"}
    )
    assert [line.split(": write")[0] for line in found[:2]] == [
        'a.py:1: "that of"',
        'b.md:5: "those of"',
    ]
    assert found[2].startswith("2 of at most 1 in ")
    assert 'a.py:4: "Of the": begin with a noun' in found
    assert 'b.md:3: "Of a": begin with a noun' in found
    assert 'b.md:5: "lie": is, remains, keeps, waits' in found


def test_a_phrase_below_its_limit_is_not():
    words = "word " * 100_000
    assert habits({"a.md": words + "that of it stays. Of the sum."}) == []
    limit, _ = next(iter(RATES.values()))
    assert len(habits({"a.md": words + "that of " * (limit + 1)})) == limit + 2
