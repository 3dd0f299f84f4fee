"""The workspaces of a host: one scope for each canonical directory, leased by whoever works in it."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hames.compose import Base, Loaded
from hames.content.errors import HamesError, NotFoundError
from hames.kernel import Context, Key, Scope
from hames.trust import Trust
from hames.workspaces.events import WorkspaceReloaded
from hames.workspaces.info import ReloadInfo, WorkspaceInfo
from hames.workspaces.live import Live
from hames.workspaces.presets import Generation
from hames.workspaces.workspace import Settings, Workspace

if TYPE_CHECKING:
    from hames.workspaces.notify import Notifier

log = logging.getLogger("hames.workspaces")

LOOK = 2.0  # seconds between slow looks


class Lease:
    """A right to work in a workspace, until it is released.

    :ivar scope: where its agents stand.
    :ivar configured: whether it had files that say something when the lease was taken.
    """

    def __init__(self, workspace: Workspace, release: Callable[[], Awaitable[None]]) -> None:
        self._release = release
        self._workspace = workspace
        self._released: asyncio.Future[None] | None = None
        self.scope: Scope = workspace.scope
        self.directory = workspace.directory
        self.configured = workspace.configured

    async def release(self) -> None:
        """Give it back, once; with the last one the workspace ends, and that is waited for."""
        if self._released is None:
            self._released = asyncio.ensure_future(self._end())
        await asyncio.shield(self._released)

    async def _end(self) -> None:
        await self._release()

    async def join(self, preset: str) -> Generation:
        """Join a preset as it is now.

        :raises HamesError: if there is none of that name, or it cannot be mounted.
        """
        return await self._workspace.presets.join(preset, self._workspace.composed)

    async def leave(self, generation: Generation | None) -> None:
        """Leave it again."""
        if generation is not None:
            await self._workspace.presets.leave(generation)


class Workspaces:
    """Leases workspaces."""

    def __init__(self, ctx: Context, base: Base, trust: Trust, settings: Settings, loaded: Loaded | None, live: Live) -> None:
        self._ctx = ctx
        self._base = base
        self._trust = trust
        self._settings = settings
        self._loaded = loaded
        self._live = live
        self._tasks: set[asyncio.Task[None]] = set()
        self._notifier: Notifier | None = None
        self._opening: dict[Path, asyncio.Task[Workspace]] = {}
        self._open: dict[Path, Workspace] = {}
        self._closing: dict[Path, asyncio.Task[None]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._ended = False

    async def acquire(self, directory: str | Path) -> Lease:
        """A lease of the workspace of a directory; the first one opens it.

        :param directory: absolute.
        :raises NotFoundError: if it is no directory.
        :raises ConfigError: if what its files say cannot be mounted; nothing of it is left then, and the next one tries again.
        """
        path = canonical(directory)
        while True:
            if self._ended:
                raise HamesError("workspaces are closed", code="CLOSED")
            if (closing := self._closing.get(path)) is not None:
                await asyncio.wait((closing,))
                continue
            workspace = self._open.get(path)
            if workspace is None:
                opening = self._opening.get(path)
                if opening is None:
                    opening = self._opening[path] = asyncio.create_task(self._make(path), name=f"workspace {path}")
                    opening.add_done_callback(lambda task, path=path: self._opening.pop(path, None) and None)
                workspace = await asyncio.shield(opening)
                if self._open.get(path) is not workspace:
                    continue
            workspace.leases += 1
            return Lease(workspace, partial(self._release, path, workspace))

    async def _make(self, path: Path) -> Workspace:
        workspace = Workspace(self._ctx, path, self._base, self._trust, self._settings, self.notifier, self._reloaded)
        try:
            await workspace.open()
        except BaseException:
            await workspace.close()
            raise
        self._open[path] = workspace
        self._live.seen(str(path))
        if self._looking is None:
            self._looking = asyncio.create_task(self._look(), name="workspaces: slow look")
        self._changed()
        return workspace

    async def _release(self, path: Path, workspace: Workspace) -> None:
        workspace.leases -= 1
        if workspace.leases == 0 and self._open.get(path) is workspace:
            del self._open[path]
            closing = self._closing[path] = asyncio.create_task(workspace.close(), name=f"closing workspace {path}")
            closing.add_done_callback(lambda _: self._closing.pop(path, None) and None)
            await asyncio.wait((closing,))
            self._live.forget(str(path))
            self._changed()
            if not self._open and not self._opening:
                await self._rest()
            closing.result()

    async def _rest(self) -> None:
        """Nobody works anywhere: watch nothing."""
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            await asyncio.wait((looking,))
        if self._notifier is not None and not self._open and not self._opening:
            self._notifier.close()
            self._notifier = None

    def notifier(self) -> Notifier | None:
        """What tells of changes; made with the first workspace that is watched."""
        if self._notifier is None and sys.platform == "linux":
            from hames.workspaces.notify import Notifier

            try:
                self._notifier = Notifier()
            except OSError as error:
                log.warning("changes of workspaces are seen by the slow look alone: %s", error.strerror)
        return self._notifier

    async def _look(self) -> None:
        """The slow look at everything: what no notice tells."""
        while True:
            await asyncio.sleep(LOOK)
            for workspace in tuple(self._open.values()):
                workspace.look()
                self._answer(workspace)
                await asyncio.sleep(0)

    def _answer(self, workspace: Workspace) -> None:
        """Do what another process has asked for."""
        request = self._live.requested(str(workspace.directory))
        if request is not None:
            task = asyncio.create_task(workspace.again(all=request.get("all") is True), name="workspace reload asked for")
            self._tasks.add(task)
            task.add_done_callback(lambda task: self._answered(task, workspace))

    def _answered(self, task: asyncio.Task[None], workspace: Workspace) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._ctx.host.contain(f"workspace {workspace.directory}", error)
        self._live.tell(self._info(workspace))

    def _reloaded(self, notice: WorkspaceReloaded) -> None:
        self._changed()
        self._ctx.emit(notice)

    def _changed(self) -> None:
        """Tell the sandbox which files compositions are made of, and other processes how the workspaces are."""
        if self._loaded is not None:
            self._loaded.workspaces = frozenset(file for workspace in self._open.values() for file in workspace.files)
        for workspace in self._open.values():
            self._live.tell(self._info(workspace))

    def get(self, directory: str | Path) -> WorkspaceInfo | None:
        """A workspace that is open, as it is."""
        workspace = self._open.get(canonical(directory))
        return None if workspace is None else self._info(workspace)

    @property
    def all(self) -> list[WorkspaceInfo]:
        return [self._info(each) for each in self._open.values()]

    @staticmethod
    def _info(each: Workspace) -> WorkspaceInfo:
        controller = each.controller
        watching = ReloadInfo(controller.watching, controller.status, controller.successful) if controller is not None else None
        return WorkspaceInfo(
            str(each.directory), each.leases, each.trusted, each.configured, bool(each.tree.rows), watching, each.reason, each.message
        )

    async def reload(self, directory: str | Path, *, all: bool = False) -> WorkspaceInfo:
        """Read a workspace that is open again; the information after that.

        :param all: start every row of it anew.
        :raises NotFoundError: if it is not open.
        """
        workspace = self._open.get(canonical(directory))
        if workspace is None:
            raise NotFoundError(f"nobody works in {directory}", remedy="only live workspaces are reloaded", code="WORKSPACE_UNKNOWN")
        await workspace.again(all=all)
        return self._info(workspace)

    async def close(self) -> None:
        """End every workspace, those that are being opened too."""
        self._ended = True
        for opening in tuple(self._opening.values()):
            await asyncio.wait((opening,))
        left, self._open = list(self._open.values()), {}
        closed = await asyncio.gather(*(each.close() for each in left), *self._closing.values(), return_exceptions=True)
        for each in left:
            self._live.forget(str(each.directory))
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._rest()
        self._changed()
        for error in closed:
            if isinstance(error, Exception):
                self._ctx.host.contain("closing a workspace", error)


def canonical(directory: str | Path) -> Path:
    """The canonical path of a directory.

    :raises NotFoundError: if there is none, or the path is not absolute.
    """
    path = Path(directory)
    if not path.is_absolute():
        raise NotFoundError(
            f"{directory!s} is not absolute", remedy="name the directory of a workspace absolutely", code="WORKSPACE_UNKNOWN"
        )
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        raise NotFoundError(f"there is no directory {path}", remedy="name an existing one", code="WORKSPACE_UNKNOWN") from None
    if not real.is_dir():
        raise NotFoundError(f"{path} is no directory", remedy="name a directory", code="WORKSPACE_UNKNOWN")
    return real


WORKSPACES: Key[Workspaces] = Key("workspaces")
