"""Which environment variables the programs of tools see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

#: Names of variables that hold secrets, as patterns; compared in upper case.
SECRETS: tuple[str, ...] = (
    "*API_KEY*",
    "*APIKEY*",
    "*ACCESS_KEY*",
    "*TOKEN*",
    "*SECRET*",
    "*PASSWORD*",
    "*PASSWD*",
    "*PASSPHRASE*",
    "*CREDENTIAL*",
    "*PRIVATE_KEY*",
    "*_AUTH",
    "*COOKIE*",
    "SSH_AUTH_SOCK",
    "*DATABASE_URL*",
    "REDIS_URL",
    "*_DSN",
    "*MONGO*_UR*",
    "*_KEY",
    "*_PAT",
    "*_PWD",
    "SSHPASS",
)


def scrubbed(environment: Mapping[str, str], withhold: Sequence[str] = (), keep: Sequence[str] = ()) -> dict[str, str]:
    """The environment without what looks like a secret.

    :param withhold: more patterns of names to leave out.
    :param keep: patterns of names to leave in all the same.
    """
    return {name: value for name, value in environment.items() if matches(name, keep) or not matches(name, (*SECRETS, *withhold))}


def matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name.upper(), pattern.upper()) for pattern in patterns)
