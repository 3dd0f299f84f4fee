"""Which mounts stop and start together, and in which order.

The *closure* of a mount is what cannot outlive it: its children and the users of its services, and theirs. A closure is sealed in
one synchronous step; then each member ends when its own closure has ended, so dependents stop before what they need. Those that
were not asked to go start again, each once, when what they used before has settled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from hames.content.errors import KernelError
from hames.kernel.mount import Mount, State
from hames.kernel.plugin import Plugin
from hames.kernel.scope import Provision, veiled

CHASES = 100  # starts of one mount in one go; more are a circle of rows that shadow each other
LIVE = (State.STARTING, State.ACTIVE)


def dependents(mount: Mount) -> list[Mount]:
    """Its children and the users of its services: what must end before it does."""
    found = dict.fromkeys(mount.children.values())
    for provision in mount.provisions:
        found.update(provision.users)
    found.pop(mount, None)
    return list(found)


def closure(roots: Iterable[Mount]) -> list[Mount]:
    """The roots and all that cannot outlive them, in the order of starting."""
    order: list[Mount] = []
    seen: set[Mount] = set()
    for root in reversed(tuple(roots)):
        # Depth first with an explicit stack: chains of services can be longer than Python's.
        stack: list[tuple[Mount, list[Mount] | None]] = [(root, None)]
        while stack:
            mount, rest = stack.pop()
            if rest is None:
                if mount in seen:
                    continue
                seen.add(mount)
                rest = dependents(mount)
            while rest and rest[-1] in seen:
                rest.pop()
            if rest:
                following = rest.pop()
                stack.append((mount, rest))
                stack.append((following, None))
            else:
                order.append(mount)
    order.reverse()
    return order


class Planner:
    """Drives the states of all mounts of a host. Synchronous as far as the mounts are."""

    def __init__(self) -> None:
        self.interested: dict[Any, dict[Mount, None]] = {}
        self.moving: dict[Mount, None] = {}
        self._pending: dict[Mount, None] = {}
        self._leaving: deque[Mount] = deque()
        self._pumping = False
        self._holds = 0
        self._chases: dict[Mount, int] = {}

    # resolution

    def lookup(self, mount: Mount, key: Any) -> Provision | None:
        """The nearest provision that ``mount`` may see now."""
        realm = mount.realms.get(key)
        veils = mount.scope.hidden()
        for scope in mount.scope.chain():
            provision = scope.provisions.get((key, realm))
            if provision is not None and self._sees(mount, provision) and not (veils and veiled(provision.mount, veils, services=True)):
                return provision
        return None

    @staticmethod
    def _sees(mount: Mount, provision: Provision) -> bool:
        owner = provision.mount
        if owner.sealed or owner is mount:  # what it provides itself is for others: it may wrap what it shadows
            return False
        if owner.state is State.ACTIVE:
            return True
        parent = mount.parent
        while parent is not None:
            if parent is owner:
                return True
            parent = parent.parent
        return False

    def awaited(self, mount: Mount) -> list[Mount]:
        """Which mounts a start waits for: those that start before it, and those that provide what it needs once they are active."""
        if mount.state is not State.WAITING:
            return []
        found = list(mount.after)
        for key in mount.plugin.needs:
            for scope in mount.scope.chain():
                provision = scope.provisions.get((key, mount.realms.get(key)))
                if provision is not None and provision.mount.state is State.STARTING:
                    found.append(provision.mount)
        return found

    def resolve(self, mount: Mount) -> dict[Any, Provision] | None:
        """What the mount would be pinned to if it started now, or None while something needed is missing."""
        pins: dict[Any, Provision] = {}
        for key in mount.plugin.needs:
            found = self.lookup(mount, key)
            if found is None:
                return None
            pins[key] = found
        for key in mount.plugin.wants:
            found = self.lookup(mount, key)
            if found is not None:
                pins[key] = found
        return pins

    def can_start(self, mount: Mount) -> bool:
        parent = mount.parent
        if mount.removed or mount.scope.closed or mount.scope.held or parent is None or parent.sealed or parent.state not in LIVE:
            return False
        return not mount.after and self.resolve(mount) is not None

    # starting

    def enter(self, mount: Mount) -> None:
        """A new mount is here: start it as soon as it can."""
        for key in (*mount.plugin.needs, *mount.plugin.wants):
            self.interested.setdefault(key, {})[mount] = None
        self._pending[mount] = None
        self.pump()

    def leave(self, mount: Mount) -> None:
        for key in (*mount.plugin.needs, *mount.plugin.wants):
            users = self.interested.get(key)
            if users is not None:
                users.pop(mount, None)
                if not users:
                    del self.interested[key]

    def pump(self) -> None:
        """Start what can start, in the order of rows; mounts that may yet get what they want come last."""
        if self._pumping or self._holds:
            return
        self._pumping = True
        try:
            while self._pending:
                round_ = list(self._pending)
                self._pending.clear()
                if len(round_) > 1:
                    round_.sort(key=self._turn)
                for mount in round_:
                    self._consider(mount)
        finally:
            self._pumping = False
            if not self._leaving:
                self._chases.clear()

    def _turn(self, mount: Mount) -> tuple[bool, tuple[int, ...]]:
        return (any(self.lookup(mount, key) is None for key in mount.plugin.wants), mount.path)

    def _give_up(self, mount: Mount) -> None:
        """It was started again and again in one go: fail it, so that the others can settle."""
        names = ", ".join(sorted({each.label for each, count in self._chases.items() if count > 1}))
        remedy = "one of them shadows what it needs for the other; provide it in another scope"
        mount.error = KernelError(f"{names} restart each other without end", remedy=remedy, owner=mount.label)
        mount.failed_pins = self.resolve(mount)
        mount.state = State.FAILED
        self._moved(mount)

    def _consider(self, mount: Mount) -> None:
        if self._chases.get(mount, 0) > CHASES:
            return
        if mount.state is State.FAILED and mount.failed_pins is not None and not mount.removed:
            pins = self.resolve(mount)
            if pins is not None and pins != mount.failed_pins:
                mount.state = State.WAITING
                mount.failing = False
        if mount.state is not State.WAITING or mount.after:
            return
        if not self.can_start(mount):
            self._release(mount)
            return
        self._chases[mount] = self._chases.get(mount, 0) + 1
        if self._chases[mount] > CHASES:
            self._give_up(mount)
            return
        pins = self.resolve(mount)
        assert pins is not None
        mount.pins = pins
        if mount.scope.staging:
            mount.scope.veils.setdefault(mount, False)
        for provision in pins.values():
            provision.users[mount] = None
        self.moving[mount] = None
        mount.start()

    def activated(self, mount: Mount) -> None:
        """Its start is over and went well."""
        if mount.sealed:
            self._proceed(mount)
            return
        mount.state = State.ACTIVE
        self.moving.pop(mount, None)
        changed: dict[Mount, None] = {}
        for provision in mount.provisions:
            changed.update(self._affected(provision))
        self._pending.update((child, None) for child in mount.children.values() if child.state is State.WAITING)
        self._moved(mount)
        if changed:
            self.restart(changed)
        else:
            self.pump()

    def _affected(self, provision: Provision) -> dict[Mount, None]:
        """Who would now resolve the key of a new provision otherwise than it did; who waits is looked at again."""
        changed: dict[Mount, None] = {}
        for mount in self.interested.get(provision.key, ()):
            if mount.state in LIVE:
                if not mount.sealed and self.lookup(mount, provision.key) is not mount.pins.get(provision.key):
                    changed[mount] = None
            else:
                self._pending[mount] = None
        return changed

    # ending

    def stop(self, roots: Iterable[Mount]) -> None:
        """Begin the end of these mounts and of all that depends on them."""
        roots = [mount for mount in roots if mount.state is not State.STOPPED]
        for mount in roots:
            self._remove(mount)
        self._wind_down(closure(roots))
        self.pump()

    def _remove(self, mount: Mount) -> None:
        mount.removed = True
        mount.replacement = None
        for child in mount.children.values():
            self._remove(child)

    def restart(self, roots: Iterable[Mount], replacement: tuple[Plugin, Any] | None = None) -> list[Mount]:
        """Stop these mounts and what depends on them, and start again once each what is not a child of one of them.

        :returns: the mounts that start again, in that order.
        """
        roots = list(roots)
        members = closure(roots)
        inside = set(members)
        for mount in members:
            for child in mount.children.values():
                self._remove(child)
        survivors = [mount for mount in members if not mount.removed]
        for mount in survivors:
            before = {pin.mount: None for pin in mount.pins.values() if pin.mount in inside}
            mount.after.update(before)
            for other in before:
                other.followers[mount] = None
        for mount in roots:
            if replacement is not None:
                mount.replacement = replacement
            if mount.state in (State.WAITING, State.FAILED) and not mount.removed:
                self._return(mount)
        self._wind_down(members)
        self.pump()
        return survivors

    def fail(self, mount: Mount, error: BaseException) -> None:
        """A start, a task or the body itself failed: end the mount as failed, and what depends on it."""
        mount.fail(error)
        if mount.sealed:
            self._proceed(mount)
            return
        mount.failing = True
        for child in mount.children.values():
            self._remove(child)
        self._wind_down(closure((mount,)))
        self.pump()

    def _wind_down(self, members: list[Mount]) -> None:
        """Seal all members at once, last started first; then let each end when its dependents have."""
        begun = [mount for mount in reversed(members) if mount.state in LIVE and not mount.sealed]
        for mount in begun:
            mount.state = State.STOPPING
            self.moving[mount] = None
            for child in mount.children.values():
                self._remove(child)
        for mount in reversed(members):
            if mount.removed and mount.state in (State.WAITING, State.FAILED):
                self._gone(mount)
        for mount in begun:
            mount.seal()
        for mount in begun:
            for other in dependents(mount):
                if other.state is State.STOPPING:
                    mount.blocked_by.add(other)
                    other.blocks.append(mount)
        for mount in begun:
            self._moved(mount)
            self._proceed(mount)

    def _proceed(self, mount: Mount) -> None:
        """Let a mount end if nothing is in its way; a chain of them one after the other, not one inside the other."""
        self._leaving.append(mount)
        if len(self._leaving) > 1:
            return
        while self._leaving:
            mount = self._leaving[0]
            try:
                if mount.state is State.STOPPING and not mount.blocked_by and not mount.proceeding and not mount.on_stack:
                    mount.proceeding = True
                    mount.proceed()
            finally:
                self._leaving.popleft()
        if not self._pumping:
            self._chases.clear()

    def ended(self, mount: Mount) -> None:
        """All four phases are over."""
        mount.proceeding = False
        self.moving.pop(mount, None)
        if mount.failing:
            mount.failed_pins = dict(mount.pins)
        for provision in mount.pins.values():
            provision.users.pop(mount, None)
        mount.pins = {}
        for provision in mount.provisions:
            for other in self.interested.get(provision.key, ()):
                if other.state in (State.WAITING, State.FAILED):
                    self._pending[other] = None
        mount.provisions.clear()
        blocks, mount.blocks = mount.blocks, []
        if mount.removed:
            self._gone(mount)
        elif mount.failing and mount.replacement is None:
            mount.state = State.FAILED
            self._moved(mount)
        else:
            self._return(mount)
        for other in blocks:
            other.blocked_by.discard(mount)
            self._proceed(other)
        self.pump()

    def _return(self, mount: Mount) -> None:
        """Wait for the next start, as what it was or as what it shall be."""
        mount.failing = False
        if mount.replacement is not None:
            self.leave(mount)
            (mount.plugin, mount.config), mount.replacement = mount.replacement, None
            for key in (*mount.plugin.needs, *mount.plugin.wants):
                self.interested.setdefault(key, {})[mount] = None
        mount.state = State.WAITING
        self._moved(mount)
        self._pending[mount] = None

    def _gone(self, mount: Mount) -> None:
        mount.state = State.STOPPED
        mount.sealed = True
        self._pending.pop(mount, None)
        mount.after.clear()
        self.leave(mount)
        mount.scope.mounts.pop(mount, None)
        if mount.parent is not None and mount.parent.children.get(mount.id) is mount:
            del mount.parent.children[mount.id]
        self._moved(mount)

    def _moved(self, mount: Mount) -> None:
        """A state has changed."""
        if mount.state in (State.ACTIVE, State.STOPPED, State.FAILED):
            self._release(mount)
        self.notify()

    def _release(self, mount: Mount) -> None:
        """It has settled for now: those that start after it need not wait for it any more."""
        followers, mount.followers = mount.followers, {}
        for other in followers:
            other.after.pop(mount, None)
            if not other.after:
                self._pending[other] = None

    def notify(self) -> None:
        """Wake whoever waits for a change of state."""
