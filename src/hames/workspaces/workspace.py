"""One workspace: its scope, what its files say, and the passes that bring the two in line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hames.compose import Base, Interpolation, Layer, compose, plan
from hames.compose.difference import difference
from hames.compose.layers import home
from hames.compose.mounting import Planned, group
from hames.compose.rows import Row
from hames.compose.tree import Change, Placed, Tree
from hames.compose.yamltext import Origin
from hames.content.errors import ConfigError, HamesError
from hames.kernel import Context, Mount
from hames.trust import Trust
from hames.trust.executes import COMPOSITION, MCP, PRESETS
from hames.workspaces.controller import ReloadController
from hames.workspaces.events import WorkspaceReloaded
from hames.workspaces.presets import Presets
from hames.workspaces.watch import Watch

if TYPE_CHECKING:
    from hames.workspaces.notify import Notifier

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

    :param changed: told of every pass that has ended.
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
        changed: Callable[[WorkspaceReloaded], None],
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
        anchor = ctx.host.mount(group, id=str(directory), scope=self.scope, parent=ctx.owner)
        self.tree = Tree(Context(ctx.host, anchor, self.scope))
        self._planned: list[Planned] = []
        self._layers: tuple[Layer, ...] = ()
        self.presets = Presets(ctx, self.scope, directory, self._places)
        self.controller: ReloadController | None = None
        self.leases = 0
        self.trusted = False
        self.configured = False
        self.files: frozenset[Path] = frozenset()
        self.reason: Reason = ""
        self.message = ""

    def _places(self) -> list[Path]:
        """Where presets are: the directory's own count only while it is trusted with what they say."""
        own = [self.directory / PRESETS] if self._standing() == "granted" else []
        return [*own, home(self._base.environment) / "presets"]

    @property
    def _own(self) -> tuple[Path, Path]:
        return self.directory / COMPOSITION, self.directory / MCP

    async def open(self) -> None:
        """Read and mount it for the first time: whole, or not at all.

        :raises HamesError: if it cannot be watched, or what its files say cannot be mounted.
        """
        self.trusted = self._standing() == "granted"
        self.configured = any(path.is_file() for path in self._own)
        if not self.trusted:
            return
        if self._settings.watch:
            self._begin_watching()
        desired, hides = self._read()
        await self.tree.reconcile(desired, hides)
        if self.controller is not None:
            self.controller.activate()

    def _begin_watching(self) -> None:
        self._watch = Watch(self._notifier(), self.directory, self._own)
        self.controller = ReloadController(self._watch, self._pass, debounce=self._settings.debounce, report=self._report)
        try:
            self.controller.start()
        except OSError as error:
            self.controller = None
            remedy = "raise fs.inotify.max_user_watches, or set config.watch: false in the row workspaces"
            raise HamesError(f"{self.directory} cannot be watched: {error.strerror}", remedy=remedy, code="WORKSPACE_FAILED") from None

    def _standing(self) -> str:
        try:
            status = self._trust.status(self.directory, self._base.composition)
        except HamesError:
            return "unknown"
        self._digest = status.executes
        if status.standing == "changed" and not status.executes:
            return "granted"  # nothing is left that would need it
        return status.standing

    def _read(self) -> tuple[dict[str, Placed], list[Mount]]:
        """What the files say now: nothing has an effect yet.

        :raises HamesError: if that is no composition.
        """
        file = self._own[0]
        layers = [*self._base.layers]
        self.configured = any(path.is_file() for path in self._own)
        composition = compose([*layers, Layer(file, str(COMPOSITION))] if file.exists() else layers)
        planned = plan(composition, Interpolation(self._base.environment, self.directory))
        self._layers = (*self._base.layers, *([Layer(file, str(COMPOSITION))] if file.is_file() else []))
        planned += self._servers()
        self._planned = planned
        base = {path.resolve() for layer in layers for path in (layer.path,)}
        found = [path for path in composition.files if path.resolve() not in base]
        self.files = frozenset(path.resolve() for path in (*found, *self._own))
        if self._watch is not None:
            self._watch.watch((*self._own, *found, *(path.resolve() for path in found)))
        # What was looked at for trust is what was read: otherwise it has been edited between the two, and another pass comes.
        before = self._digest
        if self._standing() != "granted" or self._digest != before:
            raise NotReloaded("trust", "what it would execute has changed", f"see 'hames trust show {self.directory}'")
        return difference(self._base, planned, self._ctx.owner)

    @property
    def composed(self) -> Base:
        """Its composition with what is mounted of it: what presets change."""
        base = self._base
        hidden = set(self.tree.hides)
        mounts = {path: mount for path, mount in base.mounts.items() if mount not in hidden}
        mounts |= {path: mount for path, (_, mount) in self.tree.rows.items()}
        return Base(self._layers or base.layers, base.composition, base.environment, self._planned or base.planned, mounts)

    def _servers(self) -> list[Planned]:
        """The servers of ``.mcp.json`` as rows."""
        if not self._own[1].is_file():
            return []
        from hames.mcp.project import project_servers
        from hames.mcp.server import server

        origin = Origin(str(MCP), 1)
        rows = project_servers(self.directory, self._base.environment)
        return [Planned(f"{MCP}:{name}", Row(f"{MCP}:{name}", origin, self.directory), server, config) for name, config in rows.items()]

    async def _pass(self) -> None:
        """One reading of a live workspace.

        :raises NotReloaded: if it failed; what that leaves is the settings' affair, but for trust, which leaves what there was.
        """
        everything, self._all = self._all, False
        standing = self._standing()
        if standing == "changed":
            raise NotReloaded("trust", "what it would execute has changed", f"see 'hames trust show {self.directory}'")
        try:
            if standing != "granted":
                self.trusted = standing != "unknown" and self.trusted
                if standing == "unknown":
                    raise NotReloaded("invalid", "what it would execute cannot be told", f"see 'hames trust show {self.directory}'")
                desired, hides = {}, []
            else:
                desired, hides = self._read()
        except NotReloaded:
            if standing == "unknown" and not self._settings.keep:
                await self.tree.empty()
            raise
        except HamesError as error:
            if not self._settings.keep:
                await self.tree.empty()
            raise NotReloaded("invalid", error.message, error.remedy) from error
        try:
            change = await self.tree.reconcile(desired, hides, keep=self._settings.keep, all=everything)
        except ConfigError as error:
            raise NotReloaded("start", error.message, error.remedy) from error
        self._done(change)

    def _done(self, change: Change) -> None:
        self.reason, self.message = "", ""
        self._told(WorkspaceReloaded(str(self.directory), "", "", change.started, change.stopped))

    def _report(self, error: Exception) -> None:
        self.reason = error.reason if isinstance(error, NotReloaded) else "start"
        remedy = f"; {error.remedy}" if isinstance(error, HamesError) and error.remedy else ""
        self.message = f"{error.message if isinstance(error, HamesError) else type(error).__name__}{remedy}"
        self._told(WorkspaceReloaded(str(self.directory), self.reason, self.message))

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
        """End it: what watches, then all that stands in its scope."""
        try:
            if self.controller is not None:
                await self.controller.stop()
        finally:
            await self.scope.close()
