"""The row that opens the store."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from pathlib import Path

from hames.content.errors import StorageError
from hames.kernel import Context, Key, plugin
from hames.store.blobs import Blobs
from hames.store.database import NO_SPACE, Database, full
from hames.store.owners import Owner, sweep
from hames.store.schema import CONTROL, SESSIONS


class Store:
    """The state directory: ``control.db``, ``sessions.db``, ``blobs/`` and ``owners/``.

    :param root: created with mode 700 where it does not exist.
    :raises StorageError: if it cannot be made or written.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._control: Database | None = None
        self.last_session = 0  # the highest number that a session was given here
        try:
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.owner = Owner(root / "owners")
            sweep(root / "owners")
        except OSError as error:
            if error.errno in NO_SPACE:
                raise full(root) from error
            raise StorageError(
                f"the state directory {root} cannot be written: {os.strerror(error.errno or 0)}",
                remedy="name another one with --state-dir or HAMES_STATE",
            ) from error
        try:
            self.sessions = Database(root / "sessions.db", SESSIONS)
        except BaseException:
            self.owner.release()
            raise
        self.blobs = Blobs(root / "blobs")

    @property
    def control(self) -> Database:
        """Tasks, leases and journals; opened when first used."""
        if self._control is None:
            self._control = Database(self.root / "control.db", CONTROL)
        return self._control

    async def close(self) -> None:
        try:
            await self.sessions.close()
            if self._control is not None:
                await self._control.close()
        finally:
            self.owner.release()


STORE: Key[Store] = Key("store")


#: Where state lives: given by whoever opens the host.
STATE: Key[Path] = Key("state directory")


@plugin(needs=(STATE,), name="store")
async def store(ctx: Context, config: None) -> AsyncGenerator[None]:
    """Open the state directory and provide it."""
    opened = Store(ctx.use(STATE))
    try:
        ctx.provide(STORE, opened)
        yield
    finally:
        await opened.close()
