"""Whether two descriptions of work mean the same work: a guess by the words that they share, on the side of caution."""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise

ALIKE = 0.5
"""Part of the weight of the shorter description from which on two are taken for the same work."""
SPECIAL = re.compile(r"`[^`\n]+`|[\w.-]*/[\w./-]+|\w+\.\w{1,6}\b|\w*_\w+|[a-z]+[A-Z]\w*|#\d+|\b\d{2,}\b")
"""What names a thing: paths, names of files and of code, numbers of tickets."""
WORD = re.compile(r"[^\W\d_]{2,}")
COMMON = frozenset(
    re.findall(
        r"\w+",
        "a again all also an and any are as at be been but by can could do does done for from get give go has have here how "
        "i if in into is it its just let make may me might more must my need needs new no not now of on one only or other "
        "our out over please should so some such than that the their them then there these they thing things this those to "
        "try up us use using very want was way we well were what when where which who will with work would you your ",
    )
)
ENDINGS = ("ations", "ation", "ments", "ment", "ings", "ing", "ers", "ies", "ied", "es", "ed", "er", "ly", "s", "e")
UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+")
"""Letters of scripts that put no spaces between words."""
NAMED = 2.0
"""Weight of what names a thing; that of a word is 1."""


def normal(text: str) -> str:
    """A description without what makes no difference: case, width, white space, punctuation."""
    return " ".join(re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold()))


def stem(word: str) -> str:
    """A word without its ending."""
    for ending in ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: len(word) - len(ending)]
    return word


def weighed(text: str) -> dict[str, float]:
    """The words of a description that say something, with their weights."""
    text = unicodedata.normalize("NFKC", text)
    found = {special.strip("`").casefold(): NAMED for special in SPECIAL.findall(text)}
    rest = SPECIAL.sub(" ", text).casefold()
    for word in WORD.findall(UNSPACED.sub(" ", rest)):
        if word not in COMMON:
            found.setdefault(stem(word), 1.0)
    for run in UNSPACED.findall(rest):  # no spaces part its words: pairs of letters stand for them
        for pair in map("".join, pairwise(run)) if len(run) > 1 else [run]:
            found.setdefault(pair, 0.5)
    return found


def alike(one: str, other: str) -> bool:
    """Whether two descriptions are taken for the same work."""
    if normal(one) == normal(other):
        return True
    first, second = weighed(one), weighed(other)
    shared = sum(weight for word, weight in first.items() if word in second)
    least = min(sum(first.values()), sum(second.values()))
    return bool(least) and shared / least >= ALIKE
