"""Hearing of entries that come and go."""

from __future__ import annotations

import pytest

from hames.kernel import Host, Registry, plugin


@plugin()
def runner(ctx, registry):
    registry.add(ctx, "spawn", "a runner")


async def test_whoever_watches_hears_of_what_comes_and_goes(host: Host) -> None:
    registry: Registry[str] = Registry("runner")
    heard: list[object] = []

    @plugin()
    def mirror(ctx, config):
        registry.watch(ctx, lambda name, value: heard.append((name, value)), heard.append)

    watching = host.mount(mirror)
    await host.mount(runner, registry).stop()
    assert heard == [("spawn", "a runner"), "spawn"]
    await watching.stop()
    host.mount(runner, registry)
    assert len(heard) == 2


async def test_an_announcement_that_fails_undoes_the_registration(host: Host) -> None:
    registry: Registry[str] = Registry("runner")
    heard: list[str] = []

    def refuse(name: str, value: str) -> None:
        raise RuntimeError("not this one")

    registry.watch(host.ctx, lambda name, value: None, heard.append)
    registry.watch(host.ctx, refuse, heard.append)
    with pytest.raises(RuntimeError, match="not this one"):
        registry.add(host.ctx, "spawn", "a runner")
    assert registry.get(host.root_scope, "spawn") is None and registry.size == 0
    mount = host.mount(runner, registry)
    assert mount.state.value == "failed" and registry.size == 0


async def test_a_failure_to_hear_of_a_removal_is_contained(host: Host) -> None:
    registry: Registry[str] = Registry("runner")
    heard: list[str] = []

    def fail(name: str) -> None:
        raise RuntimeError("observer")

    registry.watch(host.ctx, lambda name, value: None, fail)
    registry.watch(host.ctx, lambda name, value: None, heard.append)
    await host.mount(runner, registry).stop()
    assert heard == ["spawn"] and registry.size == 0
    assert [str(error) for _, error in host.problems] == ["observer"]
