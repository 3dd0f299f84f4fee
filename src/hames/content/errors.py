"""Every error that Hames raises, in one tree.

::

    HamesError                  code, owner, remedy; exit status 1
    ├── UsageError              the user's input is wrong; exit status 2
    │   ├── ConfigError         a composition or configuration value
    │   ├── NotFoundError       a session, file or name that does not exist
    │   └── ModelReferenceError a model that cannot be used as named
    ├── BusyError               somebody else holds what is needed; exit status 4
    ├── StorageError            the durable log cannot be written or read
    │   ├── StorageFullError    no space, or a size limit, at the log
    │   ├── DamagedError        a record or a file that fails its checksum
    │   └── FencedError         another owner has taken over
    └── KernelError             a mount, scope or service is used against its rules
        ├── SealedError         registering for an owner that is going away
        ├── WouldWaitForItself  a wait that can never end
        ├── DuplicateError      two owners of one name in one scope
        ├── MissingServiceError a service that is not there, or not declared
        ├── ExitedError         a plugin's generator ended without being asked
        └── LimitError          a plugin did not start or stop in its time

What a model, a tool or a child does wrong is not raised: it is an outcome (see ``content.finish``).
"""

from __future__ import annotations

from typing import ClassVar


class HamesError(Exception):
    """The base of the tree.

    :param message: what happened, in one line, without a secret.
    :param remedy: what the reader can do about it, in one line.
    :param owner: the row, plugin or component that is concerned.
    :param code: a stable word for programs; the class has a default.
    """

    code: str = "INTERNAL"
    exit_status: ClassVar[int] = 1

    def __init__(self, message: str, *, remedy: str = "", owner: str = "", code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.owner = owner
        if code:
            self.code = code

    def as_json(self) -> dict[str, str]:
        """The error as a flat object for ``--json``; empty members are left out."""
        members = {"code": self.code, "message": self.message, "remedy": self.remedy, "owner": self.owner}
        return {key: value for key, value in members.items() if value}


class UsageError(HamesError):
    """The user's input is wrong."""

    code = "USAGE"
    exit_status = 2


class ConfigError(UsageError):
    """A composition or a configured value is wrong."""

    code = "CONFIG_INVALID"


class NotFoundError(UsageError):
    """What the user named does not exist."""

    code = "NOT_FOUND"


class ModelReferenceError(UsageError):
    """A model that cannot be used as it is named."""

    code = "MODEL_UNKNOWN"


class BusyError(HamesError):
    """Somebody else holds what is needed."""

    code = "BUSY"
    exit_status = 4


class StorageError(HamesError):
    """The durable log cannot be written or read."""

    code = "STORAGE_FAILED"


class StorageFullError(StorageError):
    """No space, a quota or a size limit, at the log."""

    code = "STORAGE_FULL"


class DamagedError(StorageError):
    """A record or a file that does not match its checksum."""

    code = "STORAGE_DAMAGED"


class FencedError(StorageError):
    """Another owner has taken over."""

    code = "FENCED"


class KernelError(HamesError):
    """A mount, scope or service is used against its rules."""

    code = "KERNEL"


class SealedError(KernelError):
    """Registering for an owner that is going away."""

    code = "SEALED"


class WouldWaitForItself(KernelError):
    """A wait that can never end."""

    code = "WOULD_WAIT_FOR_ITSELF"


class DuplicateError(KernelError):
    """Two owners of one name in one scope."""

    code = "DUPLICATE"


class MissingServiceError(KernelError):
    """A service that is not there, or not declared."""

    code = "MISSING_SERVICE"


class ExitedError(KernelError):
    """A plugin's generator ended without being asked."""

    code = "EXITED"


class LimitError(KernelError):
    """A plugin did not start or stop in its time."""

    code = "LIMIT"
