"""Mounting rows: import, validate, mount, audit; all of it or nothing."""

from __future__ import annotations

import importlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hames.compose.rows import Row, read_rows, suggestion
from hames.content.errors import ConfigError, HamesError
from hames.kernel import Host, Mount, Plugin, State


def load_plugin(row: Row) -> Plugin:
    """Import what a row uses. Without an attribute it is the one plugin of the module, or of its ``plugin`` module.

    :raises ConfigError: if there is no such module or plugin.
    """
    module_name, _, attribute = row.use.partition(":")
    try:
        module = importlib.import_module(module_name)
        if not attribute and hasattr(module, "__path__"):
            module = importlib.import_module(f"{module_name}.plugin")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{row.source}: row {row.id} uses {row.use!r}: {error}", remedy="check the name, or install the package"
        ) from None
    names = {name: value for name, value in vars(module).items() if isinstance(value, Plugin) and value.body.__module__ == module.__name__}
    if attribute:
        found = getattr(module, attribute, None)
        if not isinstance(found, Plugin):
            known = suggestion(attribute, list(names))
            raise ConfigError(f"{row.source}: {module_name} has no plugin {attribute!r}{known}", remedy="name a plugin of that module")
        return found
    if len(names) != 1:
        what = "no plugin" if not names else f"several plugins: {', '.join(names)}"
        raise ConfigError(f"{row.source}: {module.__name__} has {what}", remedy=f"write {row.use}:name")
    return next(iter(names.values()))


def validate(row: Row, plugin: Plugin) -> Any:
    """The configuration of a row as its plugin's model.

    :raises ConfigError: naming every violation.
    """
    if plugin.config is None:
        if row.config:
            raise ConfigError(f"{row.source}: {row.use} takes no config", remedy="remove it")
        return None
    from pydantic import ValidationError

    model: Any = plugin.config
    try:
        return model.model_validate(row.config)
    except ValidationError as error:
        lines: list[str] = []
        for item in error.errors(include_url=False, include_input=False):
            place = ".".join(map(str, item["loc"]))
            hint = suggestion(str(item["loc"][-1]), list(model.model_fields)) if item["type"] == "extra_forbidden" else ""
            message = "is no setting of this plugin" if item["type"] == "extra_forbidden" else item["msg"]
            lines.append(f"{row.source}: config.{place}: {message}{hint}")
        raise ConfigError("\n".join(lines), remedy=f"see the settings of {row.use}") from None


async def mount_rows(host: Host, rows: Sequence[Row]) -> dict[str, Mount]:
    """Mount rows as one: every one of them active, or none.

    :raises ConfigError: naming every row that could not be imported, validated or started.
    """
    errors: list[str] = []
    loaded: list[tuple[Row, Plugin, Any]] = []
    for row in rows:
        try:
            plugin = load_plugin(row)
            loaded.append((row, plugin, validate(row, plugin)))
        except ConfigError as error:
            errors.append(f"{error.message} ({error.remedy})")
    if errors:
        raise ConfigError("\n".join(errors), remedy="mend these rows")
    with host.hold():
        mounts = {row.id: host.mount(plugin, config, id=row.id) for row, plugin, config in loaded}
    await host.settle()
    bad = {id: mount for id, mount in mounts.items() if mount.state is not State.ACTIVE}
    if not bad:
        return mounts
    failure = next((mount.error for mount in bad.values() if isinstance(mount.error, HamesError)), None)
    lines = [_complaint(id, mount) for id, mount in bad.items()]
    for mount in reversed(tuple(mounts.values())):
        mount.request_stop()
    await host.settle()
    if failure is not None and len(lines) == 1:
        raise failure
    raise failure if failure is not None and all("needs" in line for line in lines[1:]) else ConfigError("\n".join(lines))


def _complaint(id: str, mount: Mount) -> str:
    if mount.state is State.WAITING:
        return f"row {id} needs {', '.join(mount.missing)}, which no row provides"
    return f"row {id} did not start: {type(mount.error).__name__}: {mount.error}"


@asynccontextmanager
async def running(profile: Path, provided: Mapping[Any, Any], rows: Sequence[Row] = ()) -> AsyncGenerator[Host]:
    """A host with a profile mounted, closed at the end.

    :param provided: values under keys that the rows may need, for example the state directory.
    :param rows: further rows.
    :raises HamesError: if the profile cannot be mounted.
    """
    host = Host()
    try:
        for key, value in provided.items():
            host.ctx.provide(key, value)
        await mount_rows(host, [*read_rows(profile), *rows])
        yield host
    finally:
        await host.close()
