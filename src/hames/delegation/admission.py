"""Whether a task may begin. All of it is looked at before anything happens, and without waiting for anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hames.budget import Limits, Meter
from hames.content.errors import ConfigError, HamesError, UsageError
from hames.content.schema_check import mistakes
from hames.delegation.failures import FAILURES, Refused
from hames.delegation.outcome import Level
from hames.delegation.role import Role
from hames.delegation.roles import chosen as find
from hames.delegation.roles import required
from hames.delegation.runner import Origin, Runner, obtained
from hames.delegation.runners import Runners
from hames.delegation.spec import SHARED, TaskSpec
from hames.kernel import Mask, Scope
from hames.policy import Mode as Permission
from hames.policy.port import WIDTH, narrowest
from hames.store import Blobs
from hames.tools import TOOLS, Tools

NONE = ("none",)
"""What the tools of a task are that gets none."""
Known = Callable[[], dict[str, list[Role]]]
TRUSTED = ("user", "shipped")
"""Where roles are from whose word is enough for what a runner does not enforce."""
MOST = 1e15
LONGEST = 4 * 1024 * 1024
"""Characters of a prompt."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """What a task gets.

    :param spec: resolved by its runner.
    :param grant: the masks that it sees through: those of whoever starts it, and its own.
    :param role: who does it; None for nobody in particular.
    """

    spec: TaskSpec
    runner: Runner
    levels: dict[str, Level]
    depth: int
    permission: Permission
    grant: tuple[Mask, ...]
    meter: Meter
    role: Role | None


def admit(
    spec: TaskSpec, origin: Origin, runners: Runners, blobs: Blobs, roles: Known, *, runner: str, max_depth: int, resumed: bool = False
) -> Admitted:
    """What a task gets, with its budget set aside.

    :param roles: gives the roles that count where it is started.
    :param runner: who executes it where it names nobody.
    :param resumed: its conversation goes on, and who it is stands there: its role may have changed since.
    :raises Refused: if it may not begin; nothing has happened then.
    """
    if not spec.prompt.strip():
        raise Refused("SPEC_INVALID", "the prompt is empty", remedy="say what is to be done")
    if len(spec.prompt) > LONGEST:
        raise Refused("SPEC_INVALID", f"the prompt has {len(spec.prompt)} characters", remedy=f"at most {LONGEST}; give the rest as files")
    for name in Limits.__slots__:
        value = getattr(spec.budget, name)
        if value is not None and not 0 < value < MOST:
            raise Refused("SPEC_INVALID", f"{name} is {str(value)[:40]}", remedy="give a positive number")
    if spec.retries < 0:
        raise Refused("SPEC_INVALID", f"retries is {spec.retries}", remedy="give a number from 0 on")
    if spec.permission and spec.permission not in WIDTH:
        raise Refused("SPEC_INVALID", f"there is no permission {spec.permission!r}", remedy=f"there are {', '.join(WIDTH)}")
    role, own = find(roles(), spec.role) if spec.role and not resumed else None, list[Mask]()
    if role is not None:
        spec, own = as_role(spec, role, origin)
    chosen = runners.choose(origin.scope, spec.runner or runner)
    spec = replace(spec, runner=chosen.name)
    inherited = {"permission"} if origin.permission != "full" else set[str]()
    levels = obtained(spec, chosen, inherited | ({"tools"} if origin.grant else set()))
    if spec.schema is not None and (wrong := mistakes(spec.schema)):
        raise Refused("SCHEMA_INVALID", f"the schema cannot be enforced: {'; '.join(wrong)}", remedy="mend it, or leave it out")
    depth = origin.depth + 1
    if depth > max_depth:
        raise Refused(
            "DEPTH_EXCEEDED",
            f"a task {depth} levels below the user is not allowed",
            remedy=f"at most {max_depth}; max_depth of the row delegation changes that",
        )
    spec = replace(spec, directory=directory(spec, origin))
    for name, digest in spec.inputs.items():
        if not blobs.path(digest).exists():
            raise Refused("INPUT_UNKNOWN", f"the bytes of input {name!r} are not in the store", remedy="put them there first")
    permission = spec.permission or origin.permission
    if WIDTH[permission] > WIDTH[origin.permission]:
        raise Refused("GRANT_EXCEEDED", f"{permission} is more than {origin.permission}", remedy="ask for no more than you have")
    grant = (*origin.grant, *own)
    grant = (*grant, *masks(spec, replace(origin, grant=grant), last=depth == max_depth))
    try:
        spec = replace(chosen.check(replace(spec, permission=permission), origin))
    except HamesError as error:
        code = error.code if error.code in FAILURES else "SPEC_INVALID"
        raise Refused(code, error.message, remedy=error.remedy) from None
    whole = origin.meter
    try:
        meter = Meter(spec.budget) if whole is None else whole.part(spec.budget)
    except UsageError as error:
        raise Refused("BUDGET_EXCEEDED", error.message, remedy=error.remedy) from None
    return Admitted(spec, chosen, levels, depth, permission, grant, meter, role)


def as_role(spec: TaskSpec, role: Role, origin: Origin) -> tuple[TaskSpec, list[Mask]]:
    """The task with what the role says, and the masks of the role beside those of the task: what the task itself says comes first, but
    gives it no more than the role has."""
    tools: Tools | None = origin.scope.host.get(TOOLS, origin.scope)
    own = required(role, tools, origin.home or origin.scope, origin.grant) if tools is not None else None
    modes: list[Permission] = [mode for mode in (spec.permission, role.permission) if mode]
    limits: dict[str, float] = {}
    for name in Limits.__slots__:
        given = [value for value in (getattr(spec.budget, name), getattr(role.budget, name)) if value is not None]
        if given:
            limits[name] = min(given)
    both = tools is not None and own is not None and spec.tools is not None
    made = replace(
        spec,
        tools=own if spec.tools is None else spec.tools,
        permission=narrowest(*modes) if modes else spec.permission,
        model=spec.model or role.model,
        effort=spec.effort or role.effort,
        runner=spec.runner or role.runner,
        budget=Limits(**limits),  # pyright: ignore[reportArgumentType]
        assurance="requested" if role.assurance == "requested" and role.origin in TRUSTED else spec.assurance,
    )
    home, masks = origin.home or origin.scope, list[Mask]()
    if both and tools is not None and own is not None:
        masks.append(own_mask(own, tools, home, origin.grant))
    if tools is not None and (without := [name for name in role.without if tools.registry.known(home, name)]):
        masks.append(Mask(deny=frozenset(without)))
    return made, masks


def directory(spec: TaskSpec, origin: Origin) -> str:
    """Where it works: for an agent's child never outside of where that agent works."""
    place = Path(spec.directory or origin.cwd)
    if not place.is_absolute():
        place = Path(origin.cwd) / place
    try:
        is_there = place.is_dir()
    except (OSError, ValueError):
        is_there = False
    if not is_there:
        raise Refused("DIRECTORY_UNKNOWN", f"there is no directory {str(place)[:200]}", remedy="name an existing one")
    if spec.directory and origin.agent is not None and spec.isolation == SHARED:
        if not place.resolve().is_relative_to(Path(origin.cwd).resolve()):
            raise Refused("GRANT_EXCEEDED", f"{place} is outside of {origin.cwd}", remedy="name a directory below it")
        place = place.resolve()
    return str(place)


def masks(spec: TaskSpec, origin: Origin, *, last: bool) -> list[Mask]:
    """The masks of a task's own.

    :param last: nothing may be started from it, so it does not see what starts tasks.
    """
    tools: Tools | None = origin.scope.host.get(TOOLS, origin.scope)
    found: list[Mask] = []
    if tools is None:
        return found
    home = origin.home or origin.scope
    if spec.tools is not None:
        found.append(own_mask(spec.tools, tools, home, origin.grant))
    starting = frozenset(
        name for scope in chain(home) for name, tool in tools.registry.view(scope).items() if "delegate" in tool.capabilities
    )
    if last and spec.tools and starting.issuperset(spec.tools):
        raise Refused("GRANT_EXCEEDED", f"{', '.join(spec.tools)} may not be handed down so deep", remedy="leave it out")
    if last and starting:
        found.append(Mask(deny=starting))
    return found


def own_mask(names: tuple[str, ...], tools: Tools, scope: Scope, grant: tuple[Mask, ...]) -> Mask:
    if names == NONE:
        return Mask.none()
    unknown = [name for name in names if not tools.registry.known(scope, name)]
    if unknown or not names:
        known = ", ".join(sorted({name for each in chain(scope) for name in tools.registry.view(each)}))
        what = f"there is no tool {', '.join(unknown)}" if unknown else "the list of tools is empty"
        raise Refused("TOOL_UNKNOWN", what, remedy=f"there are {known}; 'none' stands for no tools at all")
    wide = [name for name in names if "*" not in name and "?" not in name and not all(mask.permits(name) for mask in grant)]
    if wide:
        raise Refused("GRANT_EXCEEDED", f"{', '.join(wide)} may not be handed down", remedy="name tools that whoever starts it was given")
    try:
        return Mask(frozenset(names))
    except ConfigError as error:
        raise Refused("TOOL_UNKNOWN", error.message, remedy=error.remedy) from None


def chain(scope: Scope) -> list[Scope]:
    """A scope and those that it lies in: what one of them sees may be hidden from the others."""
    found = [scope]
    while (above := found[-1].parent) is not None:
        found.append(above)
    return found
