"""anvilcore: a plugin is a capability, whose install registers in its scope; registering a clean-up there has to be awaited."""

from __future__ import annotations

from kernel_measure import Clock, Order, Tally, main

with Clock() as imported:
    from anvilcore import CapabilityDescriptor, Context, PluginManager, PluginScope


class Plugin:
    def __init__(self, root: Context, tally: Tally, scope: PluginScope) -> None:
        self._ctx = Context(root=root, parent=root, scope=scope)
        self._scope = scope
        self._tally = tally

    def hear(self, number: int) -> None:
        self._tally.hear(number)

    async def install(self) -> None:
        self._ctx.on("told", self.hear)
        await self._scope.effect("cleaning", lambda collect: collect("clean", self._tally.clean))


class Anvil:
    def __init__(self, tally: Tally, count: int) -> None:
        self._root = Context()
        self._manager = PluginManager()
        self._descriptors = [
            CapabilityDescriptor(id=f"plugin{number}", version="1", factory=lambda scope: Plugin(self._root, tally, scope))
            for number in range(count)
        ]

    async def mount(self) -> None:
        for each in self._descriptors:
            self._manager.register(each)
            await self._manager.install(each.id)

    async def dispose(self, order: Order) -> None:
        for each in order(self._descriptors):
            if errors := await self._manager.unload(each.id):
                raise errors[0]

    def emit(self, times: int) -> None:
        root = self._root
        for number in range(times):
            root.emit("told", number)

    def known(self) -> int:
        return len(self._manager.list()) + len(self._root._events_store._hooks.get("told", ()))


if __name__ == "__main__":
    main(imported, Anvil)
