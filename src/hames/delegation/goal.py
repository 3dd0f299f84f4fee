"""Whether two descriptions of work mean the same work: a guess by the words that they share, on the side of caution."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Set
from itertools import pairwise
from typing import NamedTuple

ALIKE = 0.5
"""Part of the weight of the shorter description from which on two are taken for the same work."""
LONGEST = 20_000
"""Characters of a description that are looked at."""
NAMED, PAIR = 2.0, 0.5
"""Weight of what names a thing, and of two letters that stand beside each other; that of a word is 1."""
PIECE = re.compile(r"[\w./\\#-]+", re.ASCII)
NUMBER = re.compile(r"#?\d+")
FILE = re.compile(r"[\w-]+(?:\.[\w-]+)*\.[A-Za-z]\w{0,7}", re.ASCII)
CAMEL = re.compile(r"[a-z0-9]+[A-Z]\w*|[A-Z][a-z0-9]+[A-Z]\w*", re.ASCII)
WORD = re.compile(r"[^\W\d_]{2,}")
UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+")
"""Letters of scripts that put no spaces between words."""
COMMON = frozenset(
    re.findall(
        r"\w+",
        "a again all also an and any are as at be been but by can could do does done for from get give go has have here how i if in into "
        "is it its just let make may me might more must my need needs new no not now of on one only or other our out over please should "
        "so some such than that the their them then there these they thing things this those to try up us use using very want was way we "
        "well were what when where which who will with work would you your",
    )
)
ENDINGS = ("ations", "ation", "ments", "ment", "ings", "ing", "ers", "ies", "ied", "es", "ed", "er", "ly", "s", "e")


class Parts(NamedTuple):
    """What a description says.

    :param names: of what it speaks of by name: files, code, numbers of tickets.
    :param words: the rest of what means something.
    """

    names: frozenset[str]
    words: frozenset[str]

    @property
    def all(self) -> frozenset[str]:
        return self.names | self.words


def normal(text: str) -> str:
    """A description without what makes no difference: case, width, white space, punctuation."""
    return " ".join(re.findall(r"\w+", unicodedata.normalize("NFKC", text[:LONGEST]).casefold()))


def stem(word: str) -> str:
    """A word without its ending."""
    for ending in ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: len(word) - len(ending)]
    return word


def parts(text: str) -> Parts:
    """What a description says; the beginning of a long one."""
    text = unicodedata.normalize("NFKC", text[:LONGEST])
    names: set[str] = set()
    words: set[str] = set()
    for piece in PIECE.findall(text):
        name = named(piece)
        if name:
            names.add(name)
        else:
            words |= {stem(word) for word in WORD.findall(piece.casefold()) if word not in COMMON}
    rest = PIECE.sub(" ", text).casefold()
    words |= {stem(word) for word in WORD.findall(UNSPACED.sub(" ", rest))}
    for run in UNSPACED.findall(rest):  # no spaces part its words: pairs of letters stand for them
        words |= set(map("".join, pairwise(run))) if len(run) > 1 else {run}
    return Parts(frozenset(names), frozenset(words - names))


def named(piece: str) -> str:
    """The name that a piece of a text is, as it is compared; empty where it is none."""
    last = re.split(r"[/\\]", piece.strip("./\\-#"))[-1].strip(".-")
    if NUMBER.fullmatch(piece.strip(".-")) and len(piece.strip("#.-")) > 1:
        return piece.strip("#.-")
    if not last or not any(letter.isalpha() for letter in last):
        return ""
    if FILE.fullmatch(last) or "_" in last.strip("_"):
        return last.casefold()
    if "/" in piece.strip("./") or "\\" in piece.strip("\\"):
        return last.casefold()
    return stem(last.casefold()) if CAMEL.fullmatch(last) else ""


def weight(tokens: Set[str], names: Set[str]) -> float:
    return sum(NAMED if token in names else PAIR if UNSPACED.fullmatch(token) else 1.0 for token in tokens)


def compared(one: str, other: str) -> tuple[float, float, float]:
    """The weight of two descriptions, and of what they share."""
    first, second = parts(one), parts(other)
    names = first.names | second.names
    return weight(first.all, names), weight(second.all, names), weight(first.all & second.all, names)


def alike(one: str, other: str) -> bool:
    """Whether two descriptions are taken for the same work: half of what the shorter one says stands in the other, and it is not so that
    each names a thing of which the other says nothing."""
    if normal(one) == normal(other):
        return True
    first, second = parts(one), parts(other)
    if any(letters(name) for name in first.names - second.all) and any(letters(name) for name in second.names - first.all):
        return False
    whole, another, shared = compared(one, other)
    return bool(min(whole, another)) and shared / min(whole, another) >= ALIKE


def covers(one: str, other: str) -> bool:
    """Whether one description says half of what the other does."""
    _, another, shared = compared(one, other)
    return normal(one) == normal(other) or (bool(another) and shared / another >= ALIKE)


def letters(name: str) -> bool:
    return not NUMBER.fullmatch(name)


def related(one: str, other: str) -> bool:
    """Whether two descriptions may be of the same work: they are alike, or speak of a thing by the same name."""
    first, second = parts(one), parts(other)
    shared = (first.names & second.all) | (second.names & first.all)
    return any(letters(name) for name in shared) or alike(one, other)
