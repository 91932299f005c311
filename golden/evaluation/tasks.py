"""Tasks beside prose: retrieval from a long prompt, and agreement of two free-running texts.

A needle test hides pairs of a name and a number in filler prose and asks one number at the end,
as the multi-key needles of RULER do (Hsieh et al. 2024, section 3.1). An echo, the recall test that
the smallest models pass, is in :mod:`golden.evaluation.windows`.
"""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from golden import InputError
from golden.evaluation.windows import Window
from golden.lm.tokenizer import Tokenizer

DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
ANSWER_TOKENS = 12
"""Tokens in which an answer has given its number, if it does: two bytes a digit and two more."""

_NAMES = (
    *("Anna", "Boris", "Clara", "David", "Elena", "Frank", "Greta", "Hugo", "Irene", "Jonas"),
    *("Karin", "Louis", "Marta", "Nadia", "Oscar", "Paula", "Quentin", "Rosa", "Stefan", "Tamara"),
    *("Ulrich", "Vera", "Walter", "Xenia", "Yusuf", "Zora"),
)
_NEEDLE = "The secret number of {} is"
_REQUEST = "Remember the secret numbers in this text.\n\n"
_QUESTION = "\n\nWhat is the secret number of {}?"
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


@dataclasses.dataclass(frozen=True)
class Question:
    """One number to be found in a prompt.

    window
        The prompt and the right answer, whose tokens are the window's queries: so the answer's
        likelihood is measured as prose's is.
    name, number
        Whose number is asked, and its five digits.
    depth
        Place of the pair in the filler, from 0 at its beginning to 1 at its end.
    chat
        Whether the prompt is a chat, else one text.
    """

    window: Window
    name: str
    number: str
    depth: float
    chat: bool

    @property
    def prompt(self) -> tuple[int, ...]:
        """Tokens before the number; ``ANSWER_TOKENS`` more are enough for an answer."""
        return self.window.tokens[: -self.window.queries]

    def grade(self, answer: str) -> bool:
        """Whether the first number of the answer is the right one; commas in it do not count."""
        found = re.search(r"[0-9][0-9,]*", answer)
        return found is not None and found[0].replace(",", "") == self.number


def retrieval(
    tokenizer: Tokenizer,
    texts: Mapping[str, str],
    context: int,
    *,
    chat: bool,
    prompts: int = 1,
    depths: Sequence[float] = DEPTHS,
    seed: int = 0,
) -> list[Question]:
    """Questions on each of ``prompts`` fillers, one for the pair at each of ``depths``.

    The questions on one filler differ at the end alone. Fillers are whole sentences of the texts in
    turn, from a place that ``seed`` decides, as it does names and numbers; they go on at a text's
    beginning after its end. With ``chat`` the text and the question are what the user says in the
    model's chat template. In both forms "The secret number of Anna is" begins the answer, as in
    RULER, so that how a model likes to answer does not count. A window has at most ``context``
    tokens, and would have more with another sentence.

    Raises ``InputError`` when a text or the context is too short, when there are more depths than
    names, or as :meth:`golden.lm.tokenizer.Tokenizer.chat`.
    """
    if not 0 < len(depths) <= len(_NAMES) or not all(0 <= depth <= 1 for depth in depths):
        raise InputError(f"depths must be 1 to {len(_NAMES)} numbers from 0 to 1, not {depths}")
    rng = np.random.default_rng(seed)
    questions = []
    for prompt in range(prompts):
        source, text = list(texts.items())[prompt % len(texts)]
        sentences = _SENTENCE_END.split(text.strip())
        first = int(rng.integers(len(sentences)))
        free = [name for name in _NAMES if name not in text]
        if len(free) < len(depths):
            raise InputError(f"text {source}: it has too many of the names that needles have")
        names = [str(name) for name in rng.permutation(free)]
        numbers = 10_000 + rng.choice(90_000, len(depths), replace=False)
        haystack = _Haystack(
            tokenizer,
            sentences[first:] + sentences[:first],
            sorted(zip(depths, names, map(str, numbers), strict=False)),
            f"{source}:sentence {first}",
            chat,
        )
        questions += haystack.questions(context)
    return questions


@dataclasses.dataclass(frozen=True)
class _Haystack:
    """Sentences, of which the first make the filler, and needles: depth, name, number."""

    tokenizer: Tokenizer
    sentences: list[str]
    needles: list[tuple[float, str, str]]
    source: str
    chat: bool

    def questions(self, context: int) -> list[Question]:
        """A question on each needle, with the longest filler that the context has room for."""

        def fits(count: int) -> bool:
            return all(len(q.window.tokens) <= context for q in self._asked(count))

        if not fits(0):
            raise InputError(f"{context} tokens are too few for {len(self.needles)} needles")
        # A sentence has a token at least.
        low, above = 0, min(len(self.sentences), context) + 1
        while above - low > 1:
            middle = (low + above) // 2
            low, above = (middle, above) if fits(middle) else (low, middle)
        if low == len(self.sentences):
            raise InputError(f"text {self.source}: its text is too short to fill {context} tokens")
        return list(self._asked(low))

    def _asked(self, count: int) -> Iterator[Question]:
        """Questions, shallow ones first, with a filler of that number of sentences."""
        parts = self.sentences[:count]
        for depth, name, number in reversed(self.needles):
            parts.insert(round(depth * count), f"{_NEEDLE.format(name)} {number}.")
        body, bos = " ".join(parts), self.tokenizer.encode("")
        for depth, name, number in self.needles:
            answered = _NEEDLE.format(name)
            if self.chat:
                head = self.tokenizer.chat(_REQUEST + body + _QUESTION.format(name))
            else:
                head, answered = bos, f"{body}\n\n{answered}"
            prompt = head + self.tokenizer.encode(answered)[len(bos) :]
            whole = head + self.tokenizer.encode(f"{answered} {number}")[len(bos) :]
            answer = len(whole) - len(prompt)
            window = Window(tuple(whole), answer, self.source, "retrieval")
            yield Question(window, name, number, depth, self.chat)


@dataclasses.dataclass(frozen=True)
class Agreement:
    """How far one continuation is the other.

    leading
        Tokens before the first that differs.
    equal
        Share of places with the same token, of the longer continuation.
    rouge_l
        ROUGE-L of the words: F1 of their longest common subsequence.
    """

    leading: int
    equal: float
    rouge_l: float


def agreement(
    reference: Sequence[int], other: Sequence[int], decode: Callable[[list[int]], str]
) -> Agreement:
    """Agreement of a continuation with the dense model's, both token numbers.

    Two empty continuations agree.
    """
    same = [a == b for a, b in zip(reference, other, strict=False)]
    leading = same.index(False) if False in same else len(same)
    longer = max(len(reference), len(other))
    equal = sum(same) / longer if longer else 1.0
    return Agreement(leading, equal, rouge_l(decode(list(reference)), decode(list(other))))


def rouge_l(reference: str, other: str) -> float:
    """F1 of the longest common subsequence of words (Lin 2004, section 3.1, with beta = 1).

    Words are runs of letters and digits, in lower case.
    """
    a, b = (re.findall(r"[^\W_]+", text.lower()) for text in (reference, other))
    if not a or not b:
        return float(a == b)
    # Lengths of the longest common subsequence of the words of `a` so far and each beginning of b.
    lengths = [0] * (len(b) + 1)
    for word in a:
        before = 0
        for at, candidate in enumerate(b):
            above = lengths[at + 1]
            lengths[at + 1] = before + 1 if word == candidate else max(above, lengths[at])
            before = above
    return 2 * lengths[-1] / (len(a) + len(b))
