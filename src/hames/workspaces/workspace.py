"""One workspace: its scope, what its files say, and the passes that bring the two in line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hames.compose import Base
from hames.compose.mounting import group
from hames.content.errors import ConfigError, HamesError
from hames.kernel import Context
from hames.trust import Trust
from hames.trust.executes import COMPOSITION, MCP
from hames.workspaces.events import WorkspaceReloaded

if TYPE_CHECKING:  # what a workspace that says nothing does not need is imported when it is needed
    from hames.compose.tree import Change, Placed, Tree
    from hames.kernel import Mount
    from hames.workspaces.controller import ReloadController
    from hames.workspaces.notify import Notifier
    from hames.workspaces.presets import Presets
    from hames.workspaces.reading import Reading
    from hames.workspaces.watch import Watch

READINGS = 5  # of files that change while they are read
Reason = Literal["", "invalid", "start", "trust"]


@dataclass(frozen=True, slots=True)
class Settings:
    """How workspaces are reloaded.

    :param debounce: seconds.
    :param keep: whether a pass that fails leaves what there was.
    """

    watch: bool = True
    debounce: float = 0.15
    keep: bool = False


class NotReloaded(HamesError):
    """A pass that failed, with its reason."""

    def __init__(self, reason: Reason, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy, code="WORKSPACE_FAILED")
        self.reason: Reason = reason


class Workspace:
    """A workspace.

    :param changed: told of every pass that has ended, and with None where something else about it has.
    :ivar leases: how many work in it.
    :ivar configured: whether it has files that say something.
    :ivar files: the files that its composition is made of, canonical.
    """

    def __init__(
        self,
        ctx: Context,
        directory: Path,
        base: Base,
        trust: Trust,
        settings: Settings,
        notifier: Callable[[], Notifier | None],
        changed: Callable[[Workspace, WorkspaceReloaded | None], None],
    ) -> None:
        self.directory = directory
        self.scope = ctx.host.scope(None, f"workspace {directory}")
        self._ctx = ctx
        self._base = base
        self._trust = trust
        self._settings = settings
        self._notifier = notifier
        self._told = changed
        self._watch: Watch | None = None
        self._all = False
        self._digest: tuple[str, ...] = ()
        self._tree: Tree | None = None
        self._presets: Presets | None = None
        self._reading: Reading | None = None  # what is mounted
        self._mistake: HamesError | None = None  # why it cannot be told what it would execute
        self._turn = asyncio.Lock()
        self._closed = False
        self.controller: ReloadController | None = None
        self.leases = 0
        self.trusted = False
        self.configured = False
        self.files: frozenset[Path] = frozenset()
        self.reason: Reason = ""
        self.message = ""

    @property
    def tree(self) -> Tree:
        """The rows of its own."""
        if self._tree is None:
            from hames.compose.tree import Tree

            anchor = self._ctx.host.mount(group, id=str(self.directory), scope=self.scope, parent=self._ctx.owner)
            anchor.stands_as = self._ctx.host.root.path
            self._tree = Tree(Context(self._ctx.host, anchor, self.scope))
        return self._tree

    @property
    def mounted(self) -> bool:
        """Whether rows of its own are mounted."""
        return self._tree is not None and bool(self._tree.rows)

    @property
    def presets(self) -> Presets:
        """The presets that agents here can have."""
        if self._presets is None:
            from hames.workspaces.presets import Presets

            self._presets = Presets(self._ctx, self.scope, self.directory, self._places)
        return self._presets

    def _places(self) -> list[Path]:
        """Where presets are: the directory's own count only while it is trusted with what they say."""
        from hames.workspaces.choice import places

        return places(self.directory, self._base.environment, trusted=self._standing() == "granted")

    async def open(self) -> None:
        """Read and mount it for the first time: whole, or not at all.

        :raises HamesError: if it cannot be watched, or what its files say cannot be mounted.
        """
        standing = self._standing()
        if self._mistake is not None and self._trust.inclined(self.directory):
            raise self._mistake
        self.trusted = standing == "granted"
        self.configured = any((self.directory / name).is_file() for name in (COMPOSITION, MCP))
        if not self.trusted:
            return
        if self._settings.watch:
            self._begin_watching()
        for _ in range(READINGS):
            try:
                reading = self._read()
            except NotReloaded:  # edited while it was read
                if self._standing() == "granted":
                    continue
                await self._leave_untrusted()
                return
            await self._mount(reading, self._wanted(reading), keep=False, all=False)
            break
        else:
            raise self._untrusted()
        if self.controller is not None:
            self.controller.activate()

    async def _leave_untrusted(self) -> None:
        self.trusted = False
        controller, self.controller, self._watch = self.controller, None, None
        if controller is not None:
            await controller.stop()

    def _begin_watching(self) -> None:
        from hames.workspaces.controller import ReloadController
        from hames.workspaces.reading import own_files
        from hames.workspaces.watch import Watch

        self._watch = Watch(self._notifier(), self.directory, own_files(self.directory))
        self.controller = ReloadController(
            self._watch, self._pass, debounce=self._settings.debounce, report=self._report, ended=lambda: self._told(self, None)
        )
        try:
            self.controller.start()
        except OSError as error:
            self.controller = None
            remedy = "raise fs.inotify.max_user_watches, or set config.watch: false in the row workspaces"
            raise HamesError(f"{self.directory} cannot be watched: {error.strerror}", remedy=remedy, code="WORKSPACE_FAILED") from None

    def _standing(self) -> str:
        self._mistake = None
        try:
            status = self._trust.status(self.directory, self._base.composition)
        except HamesError as error:
            self._mistake = error
            return "unknown"
        self._digest = status.executes
        if status.standing == "changed" and not status.executes:
            return "granted"  # nothing is left that would need it
        return status.standing

    def _read(self) -> Reading:
        """What the files say now.

        :raises HamesError: if that is no composition.
        """
        from hames.workspaces.reading import read

        before = self._digest
        self.configured = any((self.directory / name).is_file() for name in (COMPOSITION, MCP))
        reading = read(self.directory, self._base, self._found)
        # What was looked at for trust is what was read: otherwise it has been edited between the two, and another pass comes.
        if self._standing() != "granted" or self._digest != before:
            raise self._untrusted()
        return reading

    def _found(self, files: Iterable[Path]) -> None:
        from hames.workspaces.reading import own_files

        files = [*own_files(self.directory), *files]
        self.files = frozenset(path.resolve() for path in files)
        if self._watch is not None:
            self._watch.watch((*files, *self.files))

    def _untrusted(self) -> NotReloaded:
        return NotReloaded("trust", "what it would execute has changed", f"see 'hames trust show {self.directory}'")

    async def _mount(self, reading: Reading, wanted: tuple[dict[str, Placed], list[Mount]], *, keep: bool, all: bool) -> Change:
        change = await self.tree.reconcile(*wanted, keep=keep, all=all)
        self._reading = reading
        if self._presets is not None:
            self._presets.follow(self.composed)
        return change

    def _wanted(self, reading: Reading) -> tuple[dict[str, Placed], list[Mount]]:
        """The rows to mount, and the mounts of the host to hide."""
        from hames.compose.difference import difference

        return difference(self._base, reading.planned, self._ctx.owner)

    @property
    def composed(self) -> Base:
        """Its composition with what is mounted of it: what presets change."""
        base, reading = self._base, self._reading
        if reading is None:
            return base
        hidden = set(self.tree.hides)
        mounts = {path: mount for path, mount in base.mounts.items() if mount not in hidden}
        mounts |= {path: mount for path, (_, mount) in self.tree.rows.items()}
        return Base(reading.layers, base.composition, base.environment, reading.planned, mounts, reading.extra)

    async def _pass(self) -> None:
        """One reading of a live workspace.

        :raises NotReloaded: if it failed; what that leaves is the settings' affair, but for trust, which leaves what there was.
        """
        from hames.workspaces.reading import Reading

        async with self._turn:
            if self._closed:
                raise NotReloaded("", "nobody works here any more")
            everything, self._all = self._all, False
            standing = self._standing()
            if standing == "changed":
                raise self._untrusted()
            self.trusted = standing == "granted"
            keep = self._settings.keep
            try:
                if self._mistake is not None:
                    raise self._mistake
                reading = self._read() if self.trusted else Reading(self._base.layers, [*self._base.planned], [])
                wanted = self._wanted(reading)
            except NotReloaded:
                raise
            except HamesError as error:
                if not keep:
                    await self.tree.empty()
                raise NotReloaded("invalid", error.message, error.remedy) from error
            try:
                change = await self._mount(reading, wanted, keep=keep, all=everything)
            except ConfigError as error:
                raise NotReloaded("start", error.message, error.remedy) from error
            self.reason, self.message = "", ""
            self._told(self, WorkspaceReloaded(str(self.directory), "", "", change.started, change.stopped))

    def _report(self, error: Exception) -> None:
        self.reason = error.reason if isinstance(error, NotReloaded) else "start"
        remedy = f"; {error.remedy}" if isinstance(error, HamesError) and error.remedy else ""
        self.message = f"{error.message if isinstance(error, HamesError) else type(error).__name__}{remedy}"
        self._told(self, WorkspaceReloaded(str(self.directory), self.reason, self.message))

    def look(self) -> None:
        """The slow look: at the files, and whether what was refused has been granted."""
        if self._watch is not None:
            self._watch.look()
        if self.reason == "trust" and self.controller is not None and self._standing() == "granted":
            self.controller.request()

    async def again(self, *, all: bool = False) -> None:
        """Make a pass now and wait for it.

        :param all: start every row anew.
        """
        self._all = self._all or all
        if self.controller is None:
            if not self.trusted and self._standing() == "granted":
                self.trusted = True
                if self._settings.watch:
                    self._begin_watching()
            if self.controller is None:
                try:
                    await self._pass()
                except NotReloaded as error:
                    self._report(error)
                return
            self.controller.activate()
        self.controller.request()
        await self.controller.settled()

    async def close(self) -> None:
        """End it: what watches, a reading that is under way, then all that stands in its scope."""
        self._closed = True
        try:
            if self.controller is not None:
                await self.controller.stop()
            async with self._turn:
                pass
        finally:
            await self.scope.close()
