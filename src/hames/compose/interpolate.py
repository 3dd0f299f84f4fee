"""Values from outside in configuration: ``${env:NAME}``, ``${env:NAME:-default}``, ``${workspace}``, ``${home}``, ``${platform}``.

``$$`` is a dollar sign. What is not set is an error; nothing else is evaluated.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hames.compose.rows import suggestion
from hames.compose.yamltext import Node

PATTERN = re.compile(r"\$(?:\$|\{([^{}]*)\})")
ENV = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)(:-.*)?", re.DOTALL)


class Interpolation:
    """Fills in values from outside.

    :param workspace: the directory that a composition is for; None where there is none.
    """

    def __init__(self, environment: Mapping[str, str], workspace: Path | None = None) -> None:
        self._environment = environment
        self._names: dict[str, str] = {"home": str(Path.home()), "platform": sys.platform}
        if workspace is not None:
            self._names["workspace"] = str(workspace)

    def fill(self, node: Node, problem: Callable[[str], None]) -> Any:
        """The plain value of a node with everything filled in.

        :param problem: told each mistake, with file and line.
        """
        if isinstance(node.value, dict):
            return {key: self.fill(member, problem) for key, member in node.members.items()}
        if isinstance(node.value, list):
            return [self.fill(item, problem) for item in node.items]
        if not isinstance(node.value, str) or "$" not in node.value:
            return node.value
        return PATTERN.sub(lambda match: self._value(match, node, problem), node.value)

    def _value(self, match: re.Match[str], node: Node, problem: Callable[[str], None]) -> str:
        if match.group() == "$$":
            return "$"
        name = match.group(1)
        if env := ENV.fullmatch(name):
            variable, default = env[1], env[2]
            if variable in self._environment:
                return self._environment[variable]
            if default:  # with its ':-', so that an empty default is one too
                return default[2:]
            problem(f"{node.origin}: the environment variable {variable} is not set; set it, or write ${{env:{variable}:-default}}")
            return ""
        if name in self._names:
            return self._names[name]
        known = (*self._names, "env:NAME")
        problem(f"{node.origin}: ${{{name}}} is not known{suggestion(name, known)} ($$ is a dollar sign)")
        return ""
