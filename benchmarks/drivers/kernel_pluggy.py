"""pluggy: a plugin is an object with a hook. It knows no clean-up; whoever unregisters a plugin calls it."""

from __future__ import annotations

from kernel_measure import Clock, Order, Tally, main

with Clock() as imported:
    import pluggy

spec = pluggy.HookspecMarker("benchmark")
hook = pluggy.HookimplMarker("benchmark")


class Specification:
    @spec
    def told(self, number: int) -> None:
        """What the plugins listen to."""


class Plugin:
    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    @hook
    def told(self, number: int) -> None:
        self._tally.hear(number)

    def close(self) -> None:
        self._tally.clean()


class Pluggy:
    def __init__(self, tally: Tally, count: int) -> None:
        self._manager = pluggy.PluginManager("benchmark")
        self._manager.add_hookspecs(Specification)
        self._plugins = [Plugin(tally) for _ in range(count)]

    async def mount(self) -> None:
        for each in self._plugins:
            self._manager.register(each)

    async def dispose(self, order: Order) -> None:
        for each in order(self._plugins):
            self._manager.unregister(each)
            each.close()

    def emit(self, times: int) -> None:
        relay = self._manager.hook
        for number in range(times):
            relay.told(number=number)

    def known(self) -> int:
        return len(self._manager.get_plugins()) + len(self._manager.hook.told.get_hookimpls())


if __name__ == "__main__":
    main(imported, Pluggy)
