"""What a shell command does, as far as one can tell without running it. Whatever is not understood counts as doing anything.

The classes decide what is asked about, not what is possible: that the sandbox decides.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from hames.policy.port import Capability


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


KEYWORDS = words("if then else elif fi for while until do done case esac function select time coproc in [[ ]] { } !")

#: Programs that only read, and options of theirs that do more.
READERS: dict[str, str] = {
    "basename": "",
    "cat": "",
    "cd": "",
    "cmp": "",
    "column": "",
    "comm": "",
    "cut": "",
    "date": r"-[a-zA-Z]*s|--s|[^+-]",
    "df": "",
    "diff": "",
    "dirname": "",
    "du": "",
    "echo": "",
    "expr": "",
    "false": "",
    "file": r"-[a-zA-Z0-9]*C|--c",
    "find": r"-exec|-ok|-delete|-fprint|-fls",
    "grep": "",
    "head": "",
    "id": "",
    "jq": "",
    "ls": "",
    "md5sum": "",
    "nl": "",
    "pwd": "",
    "readlink": "",
    "realpath": "",
    "rg": r"--pre|--hostname-bin|--search-zip|-[a-zA-Z]*z",
    "seq": "",
    "sha1sum": "",
    "sha256sum": "",
    "sort": r"-[a-zA-Z0-9]*[oT]|--o|--c|--t",
    "stat": "",
    "tac": "",
    "tail": "",
    "test": r".*[\[($`]|-v",
    "tr": "",
    "true": "",
    "uname": "",
    "wc": "",
    "which": "",
    "whoami": "",
}
GIT_READERS = words("status diff log show rev-parse ls-files ls-tree blame describe cat-file shortlog merge-base rev-list grep")
GIT_LISTS = (["branch"], ["branch", "-a"], ["branch", "-v"], ["branch", "--show-current"], ["--version"])
GIT_UNSAFE = re.compile(r"--ou|--op|--ex|--textc|--filt|--git-dir|--work-tree|-[a-zA-Z0-9]*[OcC]")

NETWORK_PROGRAMS = words(
    "curl wget ssh scp sftp rsync nc ncat netcat telnet ftp ping dig nslookup host traceroute gh glab aws az gcloud gsutil kubectl helm "
    "terraform docker podman npx bunx uvx pipx twine apt apt-get dnf yum brew apk pacman snap gem http https xh"
)
NPM = words("install i ci add update upgrade publish audit outdated view info dlx exec create")
PIP = words("install download index search wheel")
NETWORK_VERBS: dict[str, frozenset[str]] = {
    "git": words("push pull fetch clone ls-remote submodule remote lfs"),
    "npm": NPM,
    "pnpm": NPM,
    "yarn": NPM,
    "bun": NPM,
    "pip": PIP,
    "pip3": PIP,
    "uv": words("pip add sync lock tool python publish build"),
    "poetry": words("install add update publish lock"),
    "cargo": words("install fetch update publish add search"),
    "go": words("get mod install"),
    "bundle": words("install update add"),
    "composer": words("install update require"),
    "mvn": words("deploy install"),
}


class Word(str):
    """A word of a command as the program gets it.

    :ivar redirect: whether it is an operator of redirection instead.
    :ivar pattern: whether the shell puts names of files in its place.
    """

    redirect: bool
    pattern: bool

    def __new__(cls, text: str, *, redirect: bool = False, pattern: bool = False) -> Word:
        word = super().__new__(cls, text)
        word.redirect = redirect
        word.pattern = pattern
        return word


DELIMITERS = frozenset(" \t\n;|&<>")
OPAQUE = frozenset("$`(){}!")


def split(command: str) -> list[list[Word]] | None:
    """The simple commands of a command, each as its words; None where there is more in it than words, pipes and lists.

    Redirections stand as words of their own (``>``, ``2>&1``, then the target).
    """
    commands: list[list[Word]] = [[]]
    place = 0
    while place < len(command):
        letter = command[place]
        if letter in " \t":
            place += 1
        elif letter in ";\n":
            commands.append([])
            place += 1
        elif command.startswith(("&&", "||"), place):
            commands.append([])
            place += 2
        elif letter == "|" and not command.startswith("|&", place):
            commands.append([])
            place += 1
        elif (operator := REDIRECT.match(command, place)) is not None:
            commands[-1].append(Word(operator.group(), redirect=True))
            place = operator.end()
        elif letter in "&|<>#":
            return None
        else:
            found = word_at(command, place)
            if found is None:
                return None
            word, place = found
            commands[-1].append(word)
    parts = [each for each in commands if each]
    for part in parts:
        if part[0] in KEYWORDS or re.match(r"[A-Za-z_]\w*\+?=", part[0]):
            return None
    return parts


#: A redirection that writes to a file, copies a descriptor, or reads from a file.
REDIRECT = re.compile(r"[0-2]?>&[0-2](?=[ \t\n;|&<>]|$)|[0-2]?>>?(?![&|(>])|&>>?(?!>)|[0-2]?<(?![<(&>])")


def word_at(command: str, place: int) -> tuple[Word, int] | None:
    """The word that begins at a place, and where it ends; None where it is not plain."""
    text: list[str] = []
    pattern = False
    while place < len(command) and command[place] not in DELIMITERS:
        letter = command[place]
        if letter in OPAQUE or not letter.isprintable():
            return None
        if letter in "'\"":
            end = command.find(letter, place + 1)
            if end < 0:
                return None
            inner = command[place + 1 : end]
            if letter == '"' and any(each in inner for each in "$`\\!"):
                return None
            text.append(inner)
            place = end + 1
        elif letter == "\\":
            if place + 1 == len(command) or command[place + 1] == "\n":
                return None
            text.append(command[place + 1])
            place += 2
        else:
            pattern |= letter in "*?["
            text.append(letter)
            place += 1
    return Word("".join(text), pattern=pattern), place


def classify(command: str) -> frozenset[Capability]:
    """The capability classes of a command."""
    parts = split(command)
    if parts is not None and "/dev/tcp/" not in command and "/dev/udp/" not in command:
        writes = not all(reads_only(part) for part in parts)
        network = any(uses_network(part) for part in parts)
    else:
        loose = re.findall(r"[\w./+-]+", command)
        writes = True
        network = parts is not None or any(uses_network(loose[index:]) for index in range(len(loose)))
    found: set[Capability] = {"read", "execute"}
    found |= {"write"} if writes else set()
    found |= {"network"} if network else set()
    return frozenset(found)


def reads_only(part: Sequence[Word]) -> bool:
    """Whether a simple command certainly writes nothing."""
    plain: list[Word] = []
    index = 0
    while index < len(part):
        word = part[index]
        if not word.redirect:
            plain.append(word)
        elif ">&" not in word:
            index += 1
            if index >= len(part) or part[index].redirect or (">" in word and part[index] != "/dev/null"):
                return False
        index += 1
    if not plain:
        return True
    name, arguments = plain[0], plain[1:]
    if name.pattern:
        return False
    options = [word for word in arguments if word.startswith("-") or (word.pattern and word[0] in "*?[")]
    if name == "git":
        if not arguments or any(word.pattern or GIT_UNSAFE.match(word) for word in options):
            return False
        return arguments[0] in GIT_READERS or list(arguments) in GIT_LISTS
    unsafe = READERS.get(name)
    if unsafe is None:
        return len(arguments) == 1 and arguments[0] == "--version" and "/" not in name
    if not unsafe:
        return True
    return not any(word.pattern for word in options) and not any(re.match(f"(?:{unsafe})", word) for word in arguments)


def uses_network(part: Sequence[str]) -> bool:
    """Whether a simple command probably speaks to others."""
    if not part:
        return False
    name = part[0].rsplit("/", 1)[-1]
    if name in ("sudo", "env", "nohup", "time", "timeout", "xargs", "command", "exec", "nice"):
        return any(uses_network(part[index:]) for index in range(1, min(len(part), 6)))
    if name in NETWORK_PROGRAMS:
        return True
    if name.startswith("python") and list(part[1:3]) == ["-m", "pip"]:
        name, part = "pip", part[2:]
    verbs = NETWORK_VERBS.get(name)
    return verbs is not None and any(word in verbs for word in part[1:] if not word.startswith("-"))


PLAIN = re.compile(r"[\w@%+=:,./*?\[\]~^-]+")


def simple_commands(command: str) -> list[str] | None:
    """The simple commands as text, for rules; None where the command is more than a list of them."""
    parts = split(command)
    if parts is None:
        return None
    return [" ".join(word if word.redirect or PLAIN.fullmatch(word) else shlex.quote(word) for word in part) for part in parts]


def loosened(command: str) -> str:
    """A command without its quotes and with single spaces: to look for what a rule forbids in what is not understood."""
    return " ".join(re.sub(r"['\"\\]", "", command).split())
