"""The workspaces of a host: one scope for each canonical directory, leased by whoever works in it."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hames.compose import Base, Loaded
from hames.content.errors import HamesError, NotFoundError
from hames.kernel import Context, Key, Scope
from hames.trust import Trust
from hames.workspaces.events import WorkspaceReloaded
from hames.workspaces.info import ReloadInfo, WorkspaceInfo
from hames.workspaces.live import Live
from hames.workspaces.workspace import Settings, Workspace

if TYPE_CHECKING:
    from hames.workspaces.notify import Notifier
    from hames.workspaces.presets import Generation

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
        self._waiting: dict[Path, int] = {}
        self._requests: Callable[[], None] | None = None
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
                    opening.add_done_callback(partial(self._opened, path))
                self._waiting[path] = self._waiting.get(path, 0) + 1
                try:
                    workspace = await asyncio.shield(opening)
                except BaseException:
                    self._waits_no_more(path)
                    self._unwanted(path)
                    raise
                self._waits_no_more(path)
                if self._open.get(path) is not workspace:
                    continue
            workspace.leases += 1
            self._changed(workspace)
            return Lease(workspace, partial(self._release, path, workspace))

    def _waits_no_more(self, path: Path) -> None:
        self._waiting[path] -= 1
        if not self._waiting[path]:
            del self._waiting[path]

    def _opened(self, path: Path, task: asyncio.Task[Workspace]) -> None:
        self._opening.pop(path, None)
        if task.cancelled() or task.exception() is not None:
            if not self._open and not self._opening:
                self._spawn(self._rest())
        else:
            asyncio.get_running_loop().call_soon(self._unwanted, path)

    def _unwanted(self, path: Path) -> None:
        """Close what was opened for somebody who does not wait for it any more."""
        workspace = self._open.get(path)
        if workspace is not None and workspace.leases == 0 and path not in self._waiting:
            self._begin_closing(path, workspace)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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
        self._changed(workspace)
        return workspace

    async def _release(self, path: Path, workspace: Workspace) -> None:
        workspace.leases -= 1
        self._changed(workspace)
        if workspace.leases == 0 and self._open.get(path) is workspace:
            closing = self._begin_closing(path, workspace)
            await asyncio.wait((closing,))
            closing.result()

    def _begin_closing(self, path: Path, workspace: Workspace) -> asyncio.Task[None]:
        del self._open[path]
        closing = self._closing[path] = asyncio.create_task(self._close(workspace), name=f"closing workspace {path}")
        closing.add_done_callback(lambda _: self._closing.pop(path, None) and None)
        return closing

    async def _close(self, workspace: Workspace) -> None:
        try:
            await workspace.close()
        finally:
            self._live.forget(str(workspace.directory))
            self._changed(workspace)
            if not self._open and not self._opening:
                await self._rest()

    async def _rest(self) -> None:
        """Nobody works anywhere: watch nothing."""
        if self._open or self._opening:
            return
        if self._requests is not None:
            self._requests()
            self._requests = None
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

    def _hear_requests(self) -> None:
        """Hear at once of what other processes ask for; without it the slow look sees it."""
        if self._notifier is not None and self._requests is None and self._live.prepare():
            with suppress(OSError):
                self._requests = self._notifier.add(str(self._live.requests), lambda name: self._answer_all())

    def _answer_all(self) -> None:
        for workspace in tuple(self._open.values()):
            self._answer(workspace)

    async def _look(self) -> None:
        """The slow look at everything: what no notice tells."""
        while True:
            await asyncio.sleep(LOOK)
            for workspace in tuple(self._open.values()):
                try:
                    workspace.look()
                    self._answer(workspace)
                except Exception as error:  # recorded: one workspace keeps no other from being looked at
                    self._ctx.host.contain(f"looking at workspace {workspace.directory}", error)
                await asyncio.sleep(0)

    def _answer(self, workspace: Workspace) -> None:
        """Do what another process has asked for."""
        request = self._live.requested(str(workspace.directory))
        if request is not None:
            self._spawn(self._reload(workspace, all=request.get("all") is True))

    async def _reload(self, workspace: Workspace, *, all: bool) -> None:
        try:
            await workspace.again(all=all)
        except HamesError as error:
            self._ctx.host.contain(f"workspace {workspace.directory}", error)
        self._live.answer(str(workspace.directory))
        self._changed(workspace)

    def _reloaded(self, workspace: Workspace, notice: WorkspaceReloaded | None) -> None:
        self._changed(workspace)
        if notice is not None:
            self._ctx.emit(notice, at=workspace.scope)

    def _changed(self, workspace: Workspace) -> None:
        """Tell the sandbox which files a composition is made of, and other processes how the workspace is."""
        is_open = self._open.get(workspace.directory) is workspace
        if is_open:
            self._hear_requests()
        if self._loaded is not None:
            self._loaded.put(workspace.directory, workspace.files if is_open else frozenset())
        if is_open:
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
            str(each.directory), each.leases, each.trusted, each.configured, each.mounted, watching, each.reason, each.message
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
        for path, workspace in tuple(self._open.items()):
            self._begin_closing(path, workspace)
        closed = await asyncio.gather(*self._closing.values(), return_exceptions=True)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._rest()
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
