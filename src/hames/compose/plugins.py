"""From a row to its plugin: import it, and validate the row's configuration.

``use`` is the name of an entry point in the group ``hames.plugins``, or ``package.module`` with ``:attribute`` where the module has
more than one plugin, or ``./file.py`` beside the file that says so.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from types import ModuleType
from typing import Any

from hames.compose.config import RowConfig
from hames.compose.local import LocalModules
from hames.compose.rows import Row, suggestion
from hames.content.errors import ConfigError
from hames.kernel import Plugin

GROUP = "hames.plugins"


def load_plugin(row: Row, local: LocalModules) -> Plugin:
    """Import what a row uses.

    :param local: the local modules of this look at the files.
    :raises ConfigError: if there is no such module or plugin, or importing it fails.
    """
    assert row.use is not None
    use: str = row.use.value
    name, _, attribute = use.partition(":")
    where = f"{row.use.origin}: "
    if name.startswith(("./", "../", "/")):
        module = local.load(row.base / name, where)
    elif "." not in name and (found := entry_point(name)) is not None:
        name, _, attribute = found.partition(":")
        module = import_module(name, where, use)
    else:
        module = import_module(name, where, use)
    if not attribute and hasattr(module, "__path__"):
        module = import_module(f"{name}.plugin", where, use)
    return pick(module, attribute, where, use)


def entry_point(name: str) -> str | None:
    """What an installed package registers under a name."""
    for entry in importlib.metadata.entry_points(group=GROUP):
        if entry.name == name:
            return entry.value
    return None


def import_module(name: str, where: str, use: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(f"{missing}."):
            known = [entry.name for entry in importlib.metadata.entry_points(group=GROUP)]
            raise ConfigError(
                f"{where}there is no plugin {use!r}{suggestion(name, known)}", remedy="check the name, or install its package"
            ) from None
        raise ConfigError(f"{where}{use} needs the module {missing}, which is not installed", remedy=f"install what {use} needs") from None
    except Exception as error:
        raise ConfigError(f"{where}importing {use} failed: {describe(error)}", remedy="mend the module") from error


def pick(module: ModuleType, attribute: str, where: str, use: str) -> Plugin:
    """The plugin of a module: the one that is named, or its only one."""
    plugins = {
        name: value for name, value in vars(module).items() if isinstance(value, Plugin) and value.body.__module__ == module.__name__
    }
    if attribute:
        found = getattr(module, attribute, None)
        if not isinstance(found, Plugin):
            raise ConfigError(f"{where}{use} names no plugin{suggestion(attribute, plugins)}", remedy="name one of its plugins")
        return found
    if len(plugins) != 1:
        what = "no plugin" if not plugins else f"several plugins ({', '.join(plugins)}); write {use}:{next(iter(plugins))}"
        raise ConfigError(f"{where}{use} has {what}", remedy="name the plugin that is meant")
    return next(iter(plugins.values()))


def describe(error: BaseException) -> str:
    """An error of somebody else's code in a line, with the place that it was raised at."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})" if trace is not None else ""
    return f"{type(error).__name__}: {error}{place}"


def validate(row: Row, plugin: Plugin, values: dict[str, Any]) -> tuple[Any, list[str]]:
    """The configuration of a row as its plugin's model, and every violation with file and line."""
    origin = row.config.origin if row.config is not None else row.origin
    if plugin.config is None:
        return None, [f"{origin}: {plugin.name} takes no config"] if values else []
    model: Any = plugin.config
    if not values and issubclass(model, RowConfig) and model.is_sound():
        return model.model_construct(), []
    from pydantic import ValidationError

    try:
        return model.model_validate(values), []
    except ValidationError as error:
        problems: list[str] = []
        for item in error.errors(include_url=False, include_input=False):
            location = [str(part) for part in item["loc"]]
            extra = item["type"] == "extra_forbidden"
            hint = suggestion(location[-1], model.model_fields) if extra and len(location) == 1 else ""
            message = f"is no setting of {plugin.name}" if extra else item["msg"][:1].lower() + item["msg"][1:]
            problems.append(f"{place(row, location)}: config.{'.'.join(location)} {message}{hint}")
        return None, problems


def place(row: Row, location: list[str]) -> str:
    """The file and line of a configured value, or of the nearest thing around it."""
    node = row.config
    origin = node.origin if node is not None else row.origin
    for part in location:
        if node is None:
            break
        node = node.members.get(part) or (node.items[int(part)] if part.isdigit() and int(part) < len(node.items) else None)
        origin = node.origin if node is not None else origin
    return str(origin)
