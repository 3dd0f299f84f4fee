"""Trust: which directories may make Hames execute something, by path and by a digest of what that is."""

from hames.trust.decisions import TRUST, Status, Trust
from hames.trust.executes import executes

__all__ = ["TRUST", "Status", "Trust", "executes"]
