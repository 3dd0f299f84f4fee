"""Scopes, registering on behalf of another, registries in layers, masks and seals."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from hames.content.errors import ConfigError, DuplicateError, SealedError
from hames.kernel import Context, Host, Key, Mask, Notice, Registry, Scope, State, plugin

Shell: Key[str] = Key("shell")


@dataclass(frozen=True)
class Ping(Notice):
    pass


@plugin()
def blank(ctx, config):
    pass


@pytest.fixture
def tools() -> Registry[str]:
    return Registry("tool")


def mounted(host: Host, **options: Any) -> Context:
    return host.context(host.mount(blank, **options))


def names(tools: Registry[str], scope: Scope) -> list[str]:
    return list(tools.view(scope))


def fill(tools: Registry[str], ctx: Context, *entries: str) -> None:
    for name in entries:
        tools.add(ctx, name, name)


def allow(*names: str) -> Mask:
    return Mask(allow=frozenset(names))


def deny(*names: str) -> Mask:
    return Mask(deny=frozenset(names))


# scopes


async def test_closing_a_scope_ends_everything_in_it_and_below(host: Host, tools: Registry[str]) -> None:
    log: list[str] = []
    scope = host.scope(key="workspace")
    below = host.scope(scope, "agent")

    @plugin()
    async def body(ctx, name):
        ctx.on(Ping, print)
        tools.add(ctx, name, name)
        ctx.provide(Shell, name)
        yield
        await asyncio.sleep(0)
        log.append(name)

    outside = host.mount(body, "outside", id="outside")
    mounts = [host.mount(body, name, id=name, scope=each) for name, each in (("workspace", scope), ("agent", below))]
    for mount in (outside, *mounts):
        await mount.ready()
    fill(tools, host.ctx.at(below), "borrowed")
    await scope.close()
    assert sorted(log) == ["agent", "workspace"]
    assert all(mount.state is State.STOPPED for mount in mounts)
    assert outside.state is State.ACTIVE
    for each in (scope, below):
        assert each.closed
        assert not each.mounts and not each.borrowed and not each.provisions and not each.children and not each.listener_count
    assert not host.root_scope.children
    assert tools.size == 1


async def test_a_closed_scope_takes_nothing_in(host: Host, tools: Registry[str]) -> None:
    scope = host.scope(key="workspace")
    ctx = mounted(host).at(scope)
    await scope.close()
    assert not ctx.live
    for enter in (
        lambda: host.mount(blank, scope=scope),
        lambda: host.scope(scope),
        lambda: ctx.mount(blank),
        lambda: ctx.on(Ping, print),
        lambda: ctx.provide(Shell, "bash"),
        lambda: tools.add(ctx, "late", "late"),
    ):
        with pytest.raises(SealedError):
            enter()
    assert not tools.size
    assert host.context(ctx.owner).live


async def test_a_scope_is_closed_at_once_and_its_end_is_waited_for(host: Host) -> None:
    gate = asyncio.Event()
    scope = host.scope()

    @plugin()
    async def slow(ctx, config):
        yield
        await gate.wait()

    mount = host.mount(slow, scope=scope)
    await mount.ready()
    closing = asyncio.create_task(scope.close())
    await asyncio.sleep(0)
    assert scope.closed and mount.state is State.STOPPING
    gate.set()
    await asyncio.gather(closing, scope.close())
    assert mount.state is State.STOPPED


async def test_a_mount_below_a_stranger_ends_with_the_scope_that_it_lives_in(host: Host) -> None:
    scope = host.scope()
    parent = host.mount(blank, id="parent")
    child = host.context(parent).at(scope).mount(blank, id="child")
    assert child.state is State.ACTIVE
    await scope.close()
    assert (child.state, parent.state) == (State.STOPPED, State.ACTIVE)
    assert not parent.children


# registering on behalf of another


@pytest.mark.parametrize("first", ["scope", "mount"])
async def test_what_is_registered_elsewhere_lives_while_both_live(host: Host, tools: Registry[str], first: str) -> None:
    scope = host.scope(key="agent")
    other = host.scope(key="other")
    owner = mounted(host, id="delegation")
    ctx = owner.at(scope)
    withdrawn: list[str] = []
    tools.add(ctx, "capture", "capture")
    ctx.on(Ping, print)
    ctx.provide(Shell, "bash")
    ctx.effect("effect", lambda: withdrawn.append("effect"))
    assert names(tools, scope) == ["capture"]
    assert names(tools, other) == names(tools, host.root_scope) == []
    assert host.get(Shell, scope) == "bash"
    assert host.get(Shell) is None

    if first == "scope":
        await scope.close()
        assert owner.live and owner.owner.state is State.ACTIVE
    else:
        await owner.owner.stop()
        assert not scope.closed
    assert not ctx.live
    assert withdrawn == ["effect"]
    assert not tools.size and not scope.listener_count and not scope.provisions and not scope.borrowed

    await owner.owner.stop()
    await scope.close()
    assert withdrawn == ["effect"]


async def test_who_registered_in_a_scope_keeps_nothing_of_it_when_it_closes(host: Host, tools: Registry[str]) -> None:
    owner = mounted(host)
    for n in range(3):
        scope = host.scope(key=n)
        ctx = owner.at(scope)
        tools.add(ctx, "capture", "capture")
        tools.declare(ctx, "later")
        tools.mask(ctx, deny("later"))
        ctx.on(Ping, print)
        ctx.provide(Shell, "bash")
        await scope.close()
    assert not owner.owner.effects
    assert not owner.owner.provisions


async def test_a_service_provided_elsewhere_is_used_there(host: Host) -> None:
    scope = host.scope()
    log: list[str] = []

    @plugin(needs=(Shell,))
    def user(ctx, config):
        log.append(ctx.use(Shell))

    inside = host.mount(user, id="inside", scope=scope)
    outside = host.mount(user, id="outside")
    owner = mounted(host)
    owner.at(scope).provide(Shell, "bash")
    assert (inside.state, outside.state) == (State.ACTIVE, State.WAITING)
    await owner.owner.stop()
    assert inside.state is State.WAITING


# registries


async def test_the_nearest_entry_is_seen(host: Host, tools: Registry[str]) -> None:
    workspace = host.scope(key="workspace")
    agent = host.scope(workspace, "agent")
    tools.add(host.ctx, "read", "of the host")
    tools.add(mounted(host, scope=workspace, id="workspace"), "read", "of the workspace")
    own = mounted(host, scope=agent, id="agent")
    tools.add(own, "read", "of the agent")
    assert [tools.get(scope, "read") for scope in (host.root_scope, workspace, agent)] == [
        "of the host",
        "of the workspace",
        "of the agent",
    ]
    assert tools.owners(agent) == {"read": "agent"}
    await own.owner.stop()
    assert tools.get(agent, "read") == "of the workspace"
    assert tools.get(agent, "write") is None


async def test_two_entries_of_one_name_in_one_scope_are_an_error_that_names_both(host: Host, tools: Registry[str]) -> None:
    tools.add(mounted(host, id="first"), "read", "1")
    second = mounted(host, id="second")
    with pytest.raises(DuplicateError, match=r"tool 'read' of second is already registered by first"):
        tools.add(second, "read", "2")
    assert tools.view(host.root_scope) == {"read": "1"}
    assert not second.owner.effects


async def test_a_view_is_a_copy(host: Host, tools: Registry[str]) -> None:
    fill(tools, host.ctx, "read")
    tools.view(host.root_scope).clear()
    assert names(tools, host.root_scope) == ["read"]


@plugin()
def row(ctx, config):
    tools, name = config
    tools.add(ctx, f"{name} late", name, order=1)
    tools.add(ctx, f"{name} z", name)
    tools.add(ctx, f"{name} a", name)


async def test_a_view_is_ordered_by_order_then_row_then_sequence(host: Host, tools: Registry[str]) -> None:
    host.mount(row, (tools, "2"), id="2", rank=2)
    host.mount(row, (tools, "1"), id="1", rank=1)
    assert names(tools, host.root_scope) == ["1 z", "1 a", "2 z", "2 a", "1 late", "2 late"]


async def test_a_row_mounted_again_keeps_its_place_in_a_view(host: Host, tools: Registry[str]) -> None:
    rows = [host.mount(row, (tools, str(rank)), id=str(rank), rank=rank) for rank in range(3)]
    before = names(tools, host.root_scope)
    await rows[0].replace()
    assert names(tools, host.root_scope) == before
    await rows[1].stop()
    host.mount(row, (tools, "1"), id="1", rank=1)
    assert names(tools, host.root_scope) == before


async def test_a_row_that_was_missing_something_comes_in_its_place(host: Host, tools: Registry[str]) -> None:
    @plugin(needs=(Shell,))
    def needy(ctx, config):
        fill(tools, ctx, "needy")

    host.mount(needy)
    fill(tools, mounted(host, id="later"), "later")
    host.ctx.provide(Shell, "bash")
    assert names(tools, host.root_scope) == ["needy", "later"]


async def test_moved_rows_are_seen_in_their_new_order(host: Host, tools: Registry[str]) -> None:
    a, b = mounted(host, id="a"), mounted(host, id="b")
    fill(tools, a, "a")
    fill(tools, b, "b")
    assert names(tools, host.root_scope) == ["a", "b"]
    host.reorder({a.owner: 2, b.owner: 1})
    tools.forget_views()
    assert names(tools, host.root_scope) == ["b", "a"]


# masks


async def test_a_mask_hides_inherited_entries_here_and_below(host: Host, tools: Registry[str]) -> None:
    workspace = host.scope()
    agent = host.scope(workspace)
    fill(tools, host.ctx, "read", "write", "bash")
    tools.mask(host.ctx.at(workspace), deny("bash"))
    assert names(tools, host.root_scope) == ["read", "write", "bash"]
    assert names(tools, workspace) == names(tools, agent) == ["read", "write"]
    assert tools.get(agent, "bash") is None


async def test_an_allow_mask_hides_all_else_and_spares_own_entries(host: Host, tools: Registry[str]) -> None:
    scope = host.scope()
    fill(tools, host.ctx, "read", "write")
    fill(tools, host.ctx.at(scope), "own")
    tools.mask(host.ctx.at(scope), allow("read"))
    assert names(tools, scope) == ["read", "own"]


async def test_deny_goes_before_allow_in_one_mask(host: Host, tools: Registry[str]) -> None:
    scope = host.scope()
    fill(tools, host.ctx, "read", "write")
    tools.mask(host.ctx.at(scope), Mask(allow=frozenset({"read", "write"}), deny=frozenset({"write"})))
    assert names(tools, scope) == ["read"]


async def test_masks_intersect_in_one_scope_and_along_the_chain(host: Host, tools: Registry[str]) -> None:
    workspace = host.scope()
    agent = host.scope(workspace)
    fill(tools, host.ctx, "read", "write", "bash", "web")
    tools.mask(host.ctx.at(workspace), allow("read", "write", "bash"))
    tools.mask(host.ctx.at(workspace), allow("read", "bash", "web"))
    tools.mask(host.ctx.at(agent), allow("read", "write"))
    assert names(tools, workspace) == ["read", "bash"]
    assert names(tools, agent) == ["read"]


async def test_masks_understand_patterns(host: Host, tools: Registry[str]) -> None:
    scope = host.scope()
    fill(tools, host.ctx, "mcp__github__read", "mcp__github__write", "mcp__jira__read", "read")
    ctx = mounted(host)
    tools.mask(ctx.at(scope), deny("mcp__*__write"))
    assert names(tools, scope) == ["mcp__github__read", "mcp__jira__read", "read"]
    tools.mask(ctx.at(scope), allow("mcp__github__*"))
    assert names(tools, scope) == ["mcp__github__read"]
    await ctx.owner.stop()
    assert len(names(tools, scope)) == 4


async def test_a_mask_that_names_nothing_known_is_refused(host: Host, tools: Registry[str]) -> None:
    scope = host.scope()
    fill(tools, host.ctx, "read")
    for mask in (allow("read", "wriet"), deny("wriet"), deny("mcp__*")):
        with pytest.raises(ConfigError, match=r"unknown tool in a mask: (wriet|mcp__\*)") as raised:
            tools.mask(host.ctx.at(scope), mask)
        assert "read" in raised.value.remedy
        with pytest.raises(ConfigError):
            tools.seal(host.ctx.at(scope), mask)
    assert names(tools, scope) == ["read"]
    assert tools.size == 1


async def test_names_of_other_scopes_are_unknown_and_hidden_ones_are_known(host: Host, tools: Registry[str]) -> None:
    scope, other = host.scope(), host.scope()
    below = host.scope(scope)
    fill(tools, host.ctx, "read", "write")
    fill(tools, host.ctx.at(other), "bash")
    tools.mask(host.ctx.at(scope), deny("write"))
    tools.mask(host.ctx.at(below), allow("write", "read"))
    assert names(tools, below) == ["read"]
    with pytest.raises(ConfigError):
        tools.mask(host.ctx.at(scope), deny("bash"))


@pytest.mark.parametrize("named", ["mcp__github__write", "mcp__github__*", "mcp__github__w*", "mcp__*"])
async def test_declared_names_may_be_masked_before_they_come(host: Host, tools: Registry[str], named: str) -> None:
    scope = host.scope()
    tools.declare(host.ctx, "mcp__github__*")
    tools.mask(host.ctx.at(scope), deny(named))
    fill(tools, host.ctx, "mcp__github__write")
    assert names(tools, host.root_scope) == ["mcp__github__write"]
    assert names(tools, scope) == []


async def test_an_empty_list_is_refused_and_none_is_said_with_none(host: Host, tools: Registry[str]) -> None:
    with pytest.raises(ConfigError, match="empty") as raised:
        Mask(allow=frozenset())
    assert "Mask.none()" in raised.value.remedy
    scope = host.scope()
    fill(tools, host.ctx, "read")
    tools.mask(host.ctx.at(scope), Mask.none())
    fill(tools, mounted(host), "write")
    assert names(tools, scope) == []


async def test_no_tools_can_be_said_before_any_is_registered(host: Host, tools: Registry[str]) -> None:
    scope = host.scope()
    tools.seal(host.ctx.at(scope), Mask.none())
    fill(tools, host.ctx, "read")
    assert names(tools, scope) == []


async def test_a_mask_persists_when_its_target_vanishes(host: Host, tools: Registry[str]) -> None:
    scope = host.scope()
    server = host.mount(plugin()(lambda ctx, config: tools.add(ctx, "deploy", "deploy")), id="server")
    tools.mask(host.ctx.at(scope), deny("deploy"))
    await server.stop()
    assert names(tools, host.root_scope) == []
    fill(tools, mounted(host), "deploy")
    assert names(tools, host.root_scope) == ["deploy"]
    assert names(tools, scope) == []


async def test_a_mask_leaves_with_its_owner(host: Host, tools: Registry[str]) -> None:
    scope = host.scope()
    fill(tools, host.ctx, "read", "write")
    first, second = mounted(host), mounted(host)
    same = deny("write")
    for ctx in (first, second):
        tools.mask(ctx.at(scope), same)
    await first.owner.stop()
    assert names(tools, scope) == ["read"]
    await second.owner.stop()
    assert names(tools, scope) == ["read", "write"]


# seals


async def test_a_seal_hides_own_entries_except_granted_ones(host: Host, tools: Registry[str]) -> None:
    agent = host.scope(key="agent")
    fill(tools, host.ctx, "read", "write")
    tools.seal(host.ctx.at(agent), allow("read"))
    fill(tools, mounted(host, id="meddler").at(agent), "write", "bash")
    tools.add(mounted(host, id="runner").at(agent), "structured_output", "capture", granted=True)
    assert names(tools, agent) == ["read", "structured_output"]
    assert tools.get(agent, "write") is None


async def test_what_is_granted_above_does_not_pass_a_mask(host: Host, tools: Registry[str]) -> None:
    lead = host.scope(key="lead")
    child = host.scope(lead, "child")
    tools.add(host.ctx.at(lead), "structured_output", "capture", granted=True)
    fill(tools, host.ctx, "read")
    tools.mask(host.ctx.at(child), allow("read"))
    assert names(tools, child) == ["read"]


async def test_a_seal_of_nothing_leaves_only_what_is_granted(host: Host, tools: Registry[str]) -> None:
    agent = host.scope(key="agent")
    fill(tools, host.ctx, "read")
    tools.add(host.ctx.at(agent), "structured_output", "capture", granted=True)
    tools.seal(host.ctx.at(agent), Mask.none())
    assert names(tools, agent) == ["structured_output"]


async def test_seals_intersect_and_leave_with_their_owner(host: Host, tools: Registry[str]) -> None:
    agent = host.scope(key="agent")
    fill(tools, host.ctx, "read", "write", "bash")
    role = mounted(host, id="role")
    tools.seal(host.ctx.at(agent), allow("read", "write"))
    tools.seal(role.at(agent), deny("write"))
    assert names(tools, agent) == ["read"]
    await role.owner.stop()
    assert names(tools, agent) == ["read", "write"]


async def test_a_grant_of_a_lead_does_not_reach_into_a_sealed_child(host: Host, tools: Registry[str]) -> None:
    lead = host.scope(key="lead")
    child = host.scope(lead, "child")
    tools.add(host.ctx.at(lead), "structured_output", "capture of the lead", granted=True)
    fill(tools, host.ctx, "read")
    tools.seal(host.ctx.at(child), allow("read"))
    assert names(tools, child) == ["read"]
