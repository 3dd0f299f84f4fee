"""Makes text of a page: ``python -m hames.toolkit.readable TYPE CHARSET``, from standard input to standard output."""

from __future__ import annotations

import codecs
import re
import sys

#: Character sets that pages have; others that Python knows are slow, or no character sets.
CHARSETS = re.compile(
    r"utf-8|utf-8-sig|ascii|utf-16(-[lb]e)?|iso8859-\d+|cp12\d\d|cp8\d\d|cp9\d\d|koi8-[ru]|mac-\w+|shift_jis\w*|euc_\w+|gb\w+|big5\w*|"
    r"iso2022_\w+|hz|tis-620"
)
META = re.compile(rb"""<meta[^>]{0,200}charset\s*=\s*["']?\s*([\w-]{1,40})""", re.IGNORECASE)
DROPPED = ("script", "style", "noscript", "template", "svg", "iframe", "img")


def decoded(data: bytes, charset: str) -> str:
    """The text of a page: in the character set that the server names, else in the one that the page itself names, else UTF-8."""
    found = META.search(data[:4096])
    for name in (charset, found.group(1).decode() if found is not None else ""):
        try:
            known = codecs.lookup(name).name
        except (LookupError, ValueError):
            continue
        if CHARSETS.fullmatch(known):
            return data.decode(known, "replace")
    return data.decode("utf-8", "replace")


def stripped(html: str) -> str:
    """The text without its tags, roughly, in a time that only grows with its length."""
    return " ".join(part.partition(">")[2] if index else part for index, part in enumerate(html.split("<"))).strip()


def markdown(html: str) -> str:
    """A page as Markdown."""
    from bs4 import BeautifulSoup
    from markdownify import MarkdownConverter

    soup = BeautifulSoup(html, "html.parser")
    for tag in soup(list(DROPPED)):
        tag.decompose()
    text = str(MarkdownConverter(heading_style="ATX").convert_soup(soup))
    out: list[str] = []
    for line in (line.rstrip() for line in text.splitlines()):
        if line or (out and out[-1]):
            out.append(line)
    return "\n".join(out).strip()


def main() -> None:
    kind, charset = sys.argv[1], sys.argv[2]
    text = decoded(sys.stdin.buffer.read(), charset)
    if kind in ("text/html", "application/xhtml+xml"):
        sys.setrecursionlimit(20_000)
        try:
            text = markdown(text)
        except RecursionError:
            text = stripped(text)
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))


if __name__ == "__main__":
    main()
