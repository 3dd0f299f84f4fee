"""The command ``hames``: a table of commands, of which only the one that is used is imported."""

from __future__ import annotations

import gc
import importlib
import io
import os
import sys
from typing import Any

import click

from hames import __version__
from hames.content.errors import HamesError, UsageError
from hames.content.visible import visible

#: name: (module, one line of help)
COMMANDS = {
    "chat": ("chat", "Speak with an agent on the terminal; what 'hames' alone does there."),
    "run": ("run", "Give an agent one task and wait for its end."),
    "sessions": ("sessions", "List, show, search, fork, export, import and purge sessions."),
    "task": ("task", "List, show and cancel tasks: work that agents have given to others."),
    "roles": ("roles", "List, show, check and make roles: who a child is, with which tools."),
    "preset": ("preset", "List, show, check, choose and make presets: compositions that an agent can have."),
    "compose": ("compose", "Show, explain and check the composition."),
    "permissions": ("permissions", "Explain what tools may do; list and revoke grants."),
    "trust": ("trust", "Show, grant and revoke trust in directories."),
    "mcp": ("mcp", "List, check and call MCP servers, and log in to them."),
    "workspace": ("workspace", "Show what directories mount; read them again while somebody works in them."),
    "models": ("models", "List providers and fetch local weights."),
    "doctor": ("doctor", "Check this installation and its state."),
}

EXIT_CODES = """Exit status: 0 done, 1 fault, 2 invalid input, 3 pending, 4 rejected (busy), 5 ended without completion, 130 cancelled."""


#: pydantic looks for plugins of its own in every installed package, which takes long. While the composition is mounted it does not.
NO_PLUGINS, OURS = "PYDANTIC_DISABLE_PLUGINS", "__all__"


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module: Any = importlib.import_module(f"hames.faces.cli.{entry[0]}")
        return module.command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            ctx.fail(f"There is no command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hames")
@click.option("--verbose", "-v", is_flag=True, help="Log what happens, and show where an error comes from.")
@click.pass_context
def cli(ctx: click.Context, verbose: bool) -> None:
    """A harness for teams of coding agents."""
    ctx.obj = {"verbose": verbose}
    if verbose:
        import logging

        logging.basicConfig(level=logging.DEBUG, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def report(error: HamesError, *, as_json: bool) -> int:
    """Say an error, in one line with its remedy or as a JSON object, and return its exit status."""
    if as_json:
        import json

        click.echo(json.dumps({"status": "error", "error": error.as_json()}, ensure_ascii=False))
    else:
        click.echo(visible(f"hames: {error.message}", keep="\n"), err=True)
        if error.remedy:
            click.echo(visible(f"       {error.remedy}", keep="\n"), err=True)
    return error.exit_status


def run() -> int:
    """Run the command line and return its exit status; every error that we know is said in a line."""
    if len(sys.argv) == 1 and sys.stdin.isatty() and sys.stdout.isatty():
        sys.argv.append("chat")
    arguments = sys.argv[1:]
    as_json, verbose = "--json" in arguments, "--verbose" in arguments or "-v" in arguments
    try:
        return cli.main(standalone_mode=False) or 0
    except (KeyboardInterrupt, click.Abort):
        return 130
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.ClickException as error:
        if as_json:
            return report(UsageError(error.format_message(), remedy="see --help"), as_json=True)
        error.show()
        return error.exit_code
    except HamesError as error:
        if verbose:
            raise
        return report(error, as_json=as_json)
    except BrokenPipeError:
        return 1  # whoever read our output has gone; there is nobody to tell
    except OSError as error:
        if verbose:
            raise
        place = f"{error.filename}: " if error.filename else ""
        return report(HamesError(f"{place}{error.strerror or error}", remedy="see --verbose for where it came from"), as_json=as_json)


def main() -> None:
    """The entry point.

    A short program has no garbage worth looking for: what is imported is never collected, and nothing is at the end.
    """
    gc.disable()
    os.environ.setdefault(NO_PLUGINS, OURS)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # what a terminal cannot show is shown as far as it goes
    status = run()
    try:
        sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            print(f"hames: the output could not be written: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = status or 1
    gc.freeze()
    sys.exit(status)
