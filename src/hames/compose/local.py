"""Plugins in files beside a composition: modules that are named by the digest of their code.

Equal code is one module with one set of keys, wherever it lies; changed code is another module. Files that it imports relatively
(``from .helper import …``) belong to its code.
"""

from __future__ import annotations

import ast
import errno
import importlib.abc
import importlib.machinery
import importlib.util
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from types import CodeType, ModuleType

from hames.content.errors import ConfigError

PREFIX = "hames_local_"
SOURCE_LIMIT = 4 * 1024 * 1024  # bytes of one file
FILES = 1000  # of one plugin


def source(path: Path) -> bytes:
    """The code of a file.

    :raises OSError: if it cannot be read, is no regular file, or is too large.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if status.st_size > SOURCE_LIMIT:
            raise OSError(errno.EFBIG, f"more than {SOURCE_LIMIT} bytes")
        return file.read()


def code_files(path: Path) -> list[Path]:
    """A file and those beside or below it that it imports relatively, and so on: all that its module may import relatively.

    :raises SyntaxError: if one of them is no Python.
    :raises OSError: if one of them cannot be read.
    """
    path = path.resolve()
    found: dict[Path, None] = {}
    todo = [path]
    while todo:
        file = todo.pop()
        if file in found:
            continue
        found[file] = None
        if len(found) > FILES:
            raise OSError(errno.E2BIG, f"more than {FILES} files of code")
        for target in imported(file, path.parent):
            todo += [*packages(target, path.parent), *candidates(target)]
    return list(found)


def imported(file: Path, root: Path) -> Iterator[Path]:
    """The places, without a suffix, of all that a file may import relatively.

    :param root: the directory of the plugin's main file, above which there is nothing.
    """
    try:
        tree = ast.parse(source(file), str(file))
    except (RecursionError, MemoryError):
        raise SyntaxError(f"{file} is nested too deeply") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            place = file.parent
            for _ in range(node.level - 1):
                place = place.parent
            if not place.is_relative_to(root):
                continue
            place = place.joinpath(*node.module.split(".")) if node.module else place
            yield place
            yield from (place / alias.name for alias in node.names if alias.name != "*")


def candidates(place: Path) -> list[Path]:
    """The files that a module without a suffix may be."""
    both = (place.with_name(f"{place.name}.py"), place / "__init__.py")
    return [each.resolve() for each in both if each.is_file()]


def packages(place: Path, root: Path) -> list[Path]:
    """The packages that are imported before a module."""
    above = [each / "__init__.py" for each in place.parents if each != root and each.is_relative_to(root)]
    return [each.resolve() for each in above if each.is_file()]


def digest(path: Path) -> str:
    """The digest of all code that a local plugin consists of.

    :raises SyntaxError: if it is no Python.
    :raises OSError: if it cannot be read.
    """
    total = sha256()
    root = path.resolve().parent
    for file in sorted(code_files(path)):
        data = source(file)
        total.update(os.fsencode(file.relative_to(root) if file.is_relative_to(root) else file) + f"\0{len(data)}\0".encode())
        total.update(data)
    return total.hexdigest()


class Finder(importlib.abc.MetaPathFinder):
    """Imports the modules of local plugins: from the source that was digested, and from nothing else. Compiled files beside it could
    hold other code."""

    def __init__(self) -> None:
        self.code: dict[str, dict[Path, bytes]] = {}  # by package: what may be imported

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        package = fullname.partition(".")[0]
        files = self.code.get(package)
        if files is None or not path:
            return None
        place = Path(path[0], fullname.rpartition(".")[2])
        for file in candidates(place):
            if file in files:
                search = [str(file.parent)] if file.name == "__init__.py" else None
                loader = Loader(fullname, str(file), files[file])
                return importlib.util.spec_from_file_location(fullname, file, loader=loader, submodule_search_locations=search)
        return None


class Loader(importlib.machinery.SourceFileLoader):
    """Runs the source that it is given."""

    def __init__(self, fullname: str, path: str, code: bytes) -> None:
        super().__init__(fullname, path)
        self._code = code

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._code, self.path, "exec", dont_inherit=True)


FINDER = Finder()


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
        files = {file: source(file) for file in code_files(path)}
        package = PREFIX + digest(path)[:20]
    except OSError as error:
        raise ConfigError(f"{where}{path}: {error.strerror}", remedy="name a file, relative to the file that uses it") from None
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise ConfigError(f"{where}{path}{line}: not Python: {error}", remedy="mend the file") from None
    name = f"{package}.{path.stem}"
    known = sys.modules.get(name)
    if known is not None:
        return known
    if FINDER not in sys.meta_path:
        sys.meta_path.insert(0, FINDER)
    FINDER.code[package] = files
    if package not in sys.modules:
        parent = ModuleType(package)
        parent.__path__ = [str(path.resolve().parent)]
        sys.modules[package] = parent
    real = path.resolve()
    spec = importlib.util.spec_from_file_location(name, real, loader=Loader(name, str(real), files[real]))
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
    FINDER.code.pop(package, None)
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        del sys.modules[name]
