"""Retrieval: where needles are, what is asked and graded; agreement of two continuations."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden import InputError
from golden.evaluation.tasks import DEPTHS, Agreement, agreement, retrieval, rouge_l
from golden.lm.byte_level import ByteLevelTokenizer
from tests.support.lm.tiny_llama import MERGES, TOKENS

TEMPLATE = (
    "{% for message in messages %}<user>{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<model>{% endif %}"
)
PLAIN = ByteLevelTokenizer(TOKENS, MERGES, "gpt-2")
CHAT = ByteLevelTokenizer(
    [*TOKENS, "<bos>", "<user>", "<model>"],
    MERGES,
    "gpt-2",
    bos=260,
    special=[260, 261, 262],
    template=TEMPLATE,
)
TEXTS = {name: " ".join(f"{name} {number:04}." for number in range(400)) for name in ("One", "Two")}
NEEDLE = re.compile(r"The secret number of (\w+) is ([0-9]{5})\.")


def ask(tokenizer=PLAIN, texts=TEXTS, context=1000, chat=False, **options):
    return retrieval(tokenizer, texts, context, chat=chat, **options)


def test_needles_are_at_their_depths():
    questions = ask(prompts=2)
    assert [question.depth for question in questions] == [*DEPTHS, *DEPTHS]
    for question in questions:
        body = PLAIN.decode(list(question.prompt)).split("\n\n")[0]
        count = len(re.findall(r"(?:One|Two) [0-9]{4}\.", body))
        found = {name: (number, at) for name, number, at in placed(body)}
        assert len(found) == len(DEPTHS)
        assert found[question.name] == (question.number, round(question.depth * count))


def placed(body):
    """Each needle's name and number, and the number of filler sentences before it."""
    for needle in NEEDLE.finditer(body):
        before = body[: needle.start()]
        yield *needle.groups(), before.count(".") - len(NEEDLE.findall(before))


def test_the_answer_ends_the_window():
    for question in ask():
        window = question.window
        assert window.kind == "retrieval" and window.tokens[: -window.queries] == question.prompt
        answer = PLAIN.decode(list(window.tokens[-window.queries :]))
        assert answer == f" {question.number}" and question.grade(answer)
        text = PLAIN.decode(list(question.prompt))
        assert text.endswith(f".\n\nThe secret number of {question.name} is")
        assert text.count(question.number) == 1 and text.count(question.name) == 2


def test_the_context_is_filled():
    questions = ask()
    lengths = [len(question.window.tokens) for question in questions]
    assert max(lengths) <= 1000 < max(lengths) + len(" One 0000.")


def test_fillers_go_on_at_the_beginning():
    for seed in range(4):
        [question] = ask(context=4000, depths=[0.5], seed=seed)
        filler = re.findall("One ([0-9]{4})", PLAIN.decode(list(question.prompt)))
        first = int(question.window.source.removeprefix("One:sentence "))
        assert [int(number) for number in filler] == [
            (first + step) % 400 for step in range(len(filler))
        ]


def test_texts_take_turns_and_seeds_differ():
    questions = ask(prompts=3, depths=[0.5])
    assert [question.window.source[:3] for question in questions] == ["One", "Two", "One"]
    assert len({question.number for question in questions}) == 3
    assert questions == ask(prompts=3, depths=[0.5]) != ask(prompts=3, depths=[0.5], seed=1)


def test_in_a_chat():
    questions = ask(CHAT, chat=True)
    for question in questions:
        text = CHAT.decode(list(question.window.tokens))
        assert question.chat and text.startswith("<bos><user>Remember the secret numbers in")
        said = f"The secret number of {question.name} is {question.number}"
        asked = f"\n\nWhat is the secret number of {question.name}?<model>{said}"
        assert text.endswith(asked) and text.count("<bos>") == 1
        assert len(list(placed(text))) == len(DEPTHS) and f"{said}. " in text
    # Only the question and the answer differ.
    bodies = {CHAT.decode(list(q.prompt)).split("\n\nWhat")[0] for q in questions}
    assert len(bodies) == 1
    with pytest.raises(InputError, match="the model has no chat template"):
        ask(chat=True)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"depths": []}, "depths must be 1 to 26 numbers from 0 to 1, not"),
        ({"depths": [0.5, 1.5]}, "depths must be 1 to 26 numbers from 0 to 1, not"),
        ({"context": 200}, "200 tokens are too few for 5 needles"),
        ({"context": 6000}, "text One:sentence [0-9]+: its text is too short to fill 6000 tokens"),
        ({"texts": {"a": "Anna."}, "depths": [0.5] * 26}, "text a: it has too many of the names"),
    ],
)
def test_what_cannot_be_asked(options, sentence):
    with pytest.raises(InputError, match=sentence):
        ask(**options)


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        (" {}", True),
        ("The secret number of Anna is {}.", True),
        ("{} or 12345", True),
        ("12345 or {}", False),
        ("{}0", False),
        ("", False),
        ("I do not know.", False),
    ],
)
def test_grades(answer, right):
    question = ask(depths=[0.5])[0]
    assert question.grade(answer.format(question.number)) == right
    with_comma = f"{question.number[:2]},{question.number[2:]}"
    assert question.grade(answer.format(with_comma)) == right


def words(tokens):
    return " ".join("abcdefgh"[token] for token in tokens)


def test_agreement():
    assert agreement([0, 1, 2, 3], [0, 1, 2, 3], words) == Agreement(4, 1.0, 1.0)
    assert agreement([0, 1, 2, 3], [0, 1, 4, 3], words) == Agreement(2, 0.75, 0.75)
    assert agreement([0, 1, 2, 3], [0, 1], words) == Agreement(2, 0.5, 4 / 6)
    assert agreement([0, 1], [1, 0, 1, 1], words) == Agreement(0, 0.0, 4 / 6)
    assert agreement([], [], words) == Agreement(0, 1.0, 1.0)
    assert agreement([0], [], words) == Agreement(0, 0.0, 0.0)


def test_rouge_l_of_the_paper_s_example():
    """Lin 2004, section 3.1: ROUGE-L tells the two sentences apart, ROUGE-2 does not."""
    assert rouge_l("police killed the gunman", "police kill the gunman") == 0.75
    assert rouge_l("police killed the gunman", "the gunman kill police") == 0.5
    assert rouge_l("Police -- killed.", "police KILLED") == 1
    assert rouge_l("...", "police") == 0 and rouge_l("", "...") == 1


@given(st.text("ab ", max_size=9), st.text("ab ", max_size=9))
def test_rouge_l_is_the_longest_common_subsequence(reference, other):
    a, b = reference.split(), other.split()
    common = max(
        size
        for size in range(len(a) + 1)
        if set(itertools.combinations(a, size)) & set(itertools.combinations(b, size))
    )
    expected = 2 * common / (len(a) + len(b)) if a and b else float(a == b)
    assert rouge_l(reference, other) == pytest.approx(expected)
