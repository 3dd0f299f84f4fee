"""What a shell command does, as far as one can tell without running it. Whatever is not understood counts as doing anything.

The classes decide what is asked about, not what is possible: that the sandbox decides.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hames.policy.port import Capability


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


TOKEN = re.compile(
    r"""(?P<space>[ \t]+)
    |(?P<end>&&|\|\||[;\n]|\|(?!&))
    |(?P<redirect>[0-2]?>&[0-2]|[0-2&]?>>?|<(?![<(&>]))
    |(?P<word>(?:[^\s;&|<>()$`"'\\{}!\#*?\[\]~]|\\[^\n]|'[^']*'|"[^"$`\\]*"|[*?\[\]~{}](?![^\s]*,))+)""",
    re.VERBOSE,
)
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
    "date": r"-[a-zA-Z]*s|--s",
    "df": "",
    "diff": "",
    "dirname": "",
    "du": "",
    "echo": "",
    "expr": "",
    "false": "",
    "file": r"-[a-zA-Z]*C|--c",
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
    "test": "",
    "tr": "",
    "true": "",
    "uname": "",
    "wc": "",
    "which": "",
    "whoami": "",
}
GIT_READERS = words("status diff log show rev-parse ls-files ls-tree blame describe cat-file shortlog merge-base rev-list grep")
GIT_LISTS = (["branch"], ["branch", "-a"], ["branch", "-v"], ["branch", "--show-current"], ["--version"])
GIT_UNSAFE = re.compile(r"--ou|--op|--ex|--textc|--filt|-O|-c|--git-dir|--work-tree|-C")

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


def split(command: str) -> list[list[str]] | None:
    """The simple commands of a command, each as its words; None where there is more in it than words, pipes and lists.

    Redirections stand as words of their own (``>``, ``2>&1``, then the target).
    """
    commands: list[list[str]] = [[]]
    position = 0
    glued = False
    while position < len(command):
        match = TOKEN.match(command, position)
        if match is None:
            return None
        position = match.end()
        kind, text = match.lastgroup, match.group()
        if kind == "end":
            commands.append([])
        elif kind == "redirect":
            commands[-1].append(text)
        elif kind == "word":
            word = unquoted(text)
            if glued:
                return None
            commands[-1].append(word)
        glued = kind == "word"
    found = [each for each in commands if each]
    for each in found:
        if each[0] in KEYWORDS or re.match(r"[A-Za-z_]\w*\+?=", each[0]):
            return None
    return found


def unquoted(text: str) -> str:
    return re.sub(r"'([^']*)'|\"([^\"]*)\"|\\(.)", lambda match: next(part for part in match.groups() if part is not None), text)


def classify(command: str) -> frozenset[Capability]:
    """The capability classes of a command."""
    parts = split(command)
    if parts is not None:
        writes = not all(reads_only(part) for part in parts)
        network = any(uses_network(part) for part in parts)
    else:
        loose = re.findall(r"[\w./+-]+", command)
        writes = True
        network = any(uses_network(loose[index:]) for index in range(len(loose)))
    found: set[Capability] = {"read", "execute"}
    found |= {"write"} if writes else set()
    found |= {"network"} if network else set()
    return frozenset(found)


def reads_only(part: Sequence[str]) -> bool:
    """Whether a simple command certainly writes nothing."""
    plain: list[str] = []
    index = 0
    while index < len(part):
        word = part[index]
        if re.fullmatch(r"[0-2&]?>>?", word):
            index += 1
            if index >= len(part) or part[index] != "/dev/null":
                return False
        elif word == "<":
            index += 1
        elif not re.fullmatch(r"[0-2]?>&[0-2]", word):
            plain.append(word)
        index += 1
    if not plain:
        return True
    name, arguments = plain[0], plain[1:]
    if name == "git":
        if not arguments or any(GIT_UNSAFE.match(word) for word in arguments):
            return False
        return arguments[0] in GIT_READERS or arguments in GIT_LISTS
    unsafe = READERS.get(name)
    if unsafe is None:
        return len(arguments) == 1 and arguments[0] in ("--version", "-V") and "/" not in name
    return not unsafe or not any(re.match(rf"(?:{unsafe}|[*?\[])", word) for word in arguments)  # a pattern may become an option


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


def simple_commands(command: str) -> list[str] | None:
    """The simple commands as text, for rules; None where the command is more than a list of them."""
    parts = split(command)
    return None if parts is None else [" ".join(part) for part in parts]
