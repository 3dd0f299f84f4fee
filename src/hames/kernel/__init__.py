"""The kernel: whatever is registered can be unregistered.

A *plugin* is a function or generator; a *mount* is one application of it; a mount lives in a *scope* and everything that it
registers goes through one door, :meth:`Context.effect`, so that stopping the mount takes it all away. *Services* are values under
typed keys, *events* are dataclasses, *registries* are named entries in layers. Nothing here knows what an agent is.
"""

from hames.kernel.context import Context
from hames.kernel.events import Around, Ask, Notice
from hames.kernel.host import Host
from hames.kernel.keys import Key
from hames.kernel.mount import Effect, Mount, State
from hames.kernel.plugin import Plugin, plugin
from hames.kernel.registry import Mask, Registry
from hames.kernel.scope import Scope

__all__ = ["Around", "Ask", "Context", "Effect", "Host", "Key", "Mask", "Mount", "Notice", "Plugin", "Registry", "Scope", "State", "plugin"]
