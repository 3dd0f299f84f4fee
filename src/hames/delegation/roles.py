"""Where roles are, and what tools one has at a moment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hames.delegation.failures import Refused
from hames.delegation.role import LONGEST, Intent, Origin, Role, read_role
from hames.kernel import Mask, Scope
from hames.kernel.registry import matches
from hames.toolkit.project import directories, read_text, user_directory
from hames.tools import Tools

COUNT = 500
"""Files of a place that are looked at."""


def found(cwd: Path, *, project: bool, shipped: Iterable[Path] = ()) -> dict[str, list[Role]]:
    """All roles for a directory by their names; of one name first the one that counts.

    :param project: whether those of the repository count: it is somebody else's text until its directory is trusted.
    """
    places: list[tuple[Path, Origin, Path | None]] = []
    if project:
        above = directories(cwd)
        for place in reversed(above):
            places.append((place / ".hames" / "roles", "workspace", above[0]))
            places.append((place / ".claude" / "agents", "claude", above[0]))
    places.append((user_directory() / "roles", "user", None))
    for path in shipped:
        places.append((path, "shipped", None))
    roles: dict[str, list[Role]] = {}
    for place, origin, inside in places:
        for role in of(place, origin, inside):
            roles.setdefault(role.name, []).append(role)
    return dict(sorted(roles.items()))


def of(place: Path, origin: Origin, inside: Path | None) -> list[Role]:
    """The roles of one directory."""
    try:
        files = sorted(path for path in place.iterdir() if path.suffix == ".md")[:COUNT]
    except OSError:
        return []
    made: list[Role] = []
    for path in files:
        read = read_text(path, inside, LONGEST)
        if read is None:
            continue
        if read.refused or read.more:
            made.append(Role(path.stem, origin, path, problem=read.refused or f"it has more than {LONGEST} bytes"))
        else:
            try:
                made.append(read_role(read.text, path, origin))
            except Exception as error:  # recorded as a role that cannot be used: it hides no other
                made.append(Role(path.stem, origin, path, problem=f"it cannot be read: {type(error).__name__}"))
    return made


def chosen(roles: dict[str, list[Role]], name: str) -> Role:
    """The role of a name.

    :raises Refused: ``ROLE_UNKNOWN``, or ``ROLE_INVALID`` where its file is wrong.
    """
    if name not in roles:
        raise Refused("ROLE_UNKNOWN", f"there is no role {name[:80]!r}", remedy=f"there are {', '.join(roles) or 'none'}")
    role = roles[name][0]
    if role.problem:
        raise Refused("ROLE_INVALID", f"the role {name} cannot be used: {role.problem}", remedy=f"mend {role.path}", owner=str(role.path))
    return role


@dataclass(frozen=True, slots=True)
class Resolved:
    """The tools of a role at a moment.

    :param kept: names and patterns that stand for something; None for all that may be handed down.
    :param dropped: what is left out, with the reason.
    :param missing: what is required and not there.
    """

    kept: tuple[str, ...] | None
    dropped: tuple[tuple[str, str], ...] = ()
    missing: tuple[str, ...] = ()


def resolved(intents: tuple[Intent, ...] | None, tools: Tools, scope: Scope, grant: tuple[Mask, ...] = ()) -> Resolved:
    """What a role's intents come to in a scope.

    :param grant: the masks of whoever starts it: what may be missing and may not be handed down is left out.
    """
    if intents is None:
        return Resolved(None)
    if [each.pattern for each in intents] == ["none"]:
        return Resolved(("none",))
    kept: dict[str, None] = {}
    dropped: dict[str, str] = {}
    missing: list[str] = []
    there = everything(tools, scope)
    for each in intents:
        plain = not set(each.pattern) & set("*?")
        if each.why:
            dropped[each.word] = each.why
        elif plain and not each.required and not all(mask.permits(each.pattern) for mask in grant):
            dropped[each.pattern] = "whoever starts it may not hand it down"
        elif each.required and not any(matches(name, (each.pattern,)) for name in there):
            missing.append(each.word)
        elif tools.registry.known(scope, each.pattern):
            kept[each.pattern] = None
        else:
            dropped[each.pattern or each.word] = "it is not there"
    return Resolved(tuple(kept), tuple(dropped.items()), tuple(missing))


def everything(tools: Tools, scope: Scope) -> set[str]:
    """The tools of a scope and of those that it lies in, hidden or not."""
    found: set[str] = set()
    place: Scope | None = scope
    while place is not None:
        found |= set(tools.registry.view(place))
        place = place.parent
    return found


def required(role: Role, tools: Tools, scope: Scope, grant: tuple[Mask, ...]) -> tuple[str, ...] | None:
    """The tools of a role, as a task names them.

    :raises Refused: ``ROLE_TOOLS_MISSING`` where a tool that it needs is not there, or nothing of what it wants.
    """
    found = resolved(role.tools, tools, scope, grant)
    if found.missing:
        remedy = f"mount what brings them, or mark them as optional with ? in {role.path}"
        raise Refused("ROLE_TOOLS_MISSING", f"the role {role.name} needs {', '.join(found.missing)}", remedy=remedy)
    if found.kept == ():
        remedy = f"see 'hames roles check {role.name}'"
        raise Refused("ROLE_TOOLS_MISSING", f"nothing of what the role {role.name} wants is there", remedy=remedy)
    return found.kept
