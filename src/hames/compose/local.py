"""Plugins in files beside a composition: modules that are named by the digest of their code.

Equal code is one module with one set of keys, wherever it lies; changed code is another module. Files that it imports relatively
(``from .helper import …``) belong to its code.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from hashlib import sha256
from pathlib import Path
from types import ModuleType

from hames.content.errors import ConfigError

PREFIX = "hames_local_"


def code_files(path: Path) -> list[Path]:
    """A file and those beside or below it that it imports relatively, and so on.

    :raises SyntaxError: if one of them is no Python.
    :raises OSError: if one of them cannot be read.
    """
    found: dict[Path, None] = {}
    todo = [path.resolve()]
    while todo:
        file = todo.pop()
        if file in found:
            continue
        found[file] = None
        for node in ast.walk(ast.parse(file.read_bytes(), str(file))):
            if isinstance(node, ast.ImportFrom) and node.level == 1:
                names = [node.module] if node.module else [alias.name for alias in node.names]
                for name in names:
                    target = file.parent.joinpath(*name.split("."))
                    for candidate in (target.with_suffix(".py"), target / "__init__.py"):
                        if candidate.is_file():
                            todo.append(candidate.resolve())
    return list(found)


def digest(path: Path) -> str:
    """The digest of all code that a local plugin consists of.

    :raises SyntaxError: if it is no Python.
    :raises OSError: if it cannot be read.
    """
    total = sha256()
    root = path.resolve().parent
    for file in sorted(code_files(path)):
        data = file.read_bytes()
        total.update(f"{file.relative_to(root) if file.is_relative_to(root) else file}\0{len(data)}\0".encode())
        total.update(data)
    return total.hexdigest()


class LocalModules:
    """The local modules of one look at the files: each is read and digested once.

    :ivar files: all that they consist of.
    """

    def __init__(self) -> None:
        self._loaded: dict[Path, ModuleType] = {}
        self.files: list[Path] = []

    def load(self, path: Path, where: str) -> ModuleType:
        """The module of a local file, as :func:`load_local` gives it."""
        module = self._loaded.get(path)
        if module is None:
            module = self._loaded[path] = load_local(path, where)
            self.files += code_files(path)
        return module


def load_local(path: Path, where: str) -> ModuleType:
    """The module of a local file.

    :param where: what a message begins with: file and line of the row.
    :raises ConfigError: if it cannot be read, is no Python, or raises.
    """
    try:
        package = PREFIX + digest(path)[:20]
    except OSError as error:
        raise ConfigError(f"{where}{path}: {error.strerror}", remedy="name a file, relative to the file that uses it") from None
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        raise ConfigError(f"{where}{path}{line}: not Python: {error}", remedy="mend the file") from None
    name = f"{package}.{path.stem}"
    known = sys.modules.get(name)
    if known is not None:
        return known
    if package not in sys.modules:
        parent = ModuleType(package)
        parent.__path__ = [str(path.resolve().parent)]
        sys.modules[package] = parent
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{where}{path} is no Python file", remedy="name a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        from hames.compose.plugins import describe

        forget(package)
        raise ConfigError(f"{where}importing {path} failed: {describe(error)}", remedy="mend the file") from error
    return module


def forget(package: str) -> None:
    """Take a local package out of Python's table of modules."""
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        del sys.modules[name]
