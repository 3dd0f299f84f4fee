"""Whatever has been edited before, what a workspace shows is what its files mean to a host that reads them for the first time."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hames.compose import running
from hames.content.errors import HamesError
from hames.prompts import PROMPTS, Facts
from hames.store import STATE
from hames.tools import TOOLS
from hames.workspaces import WORKSPACES

SOON = 10  # seconds

PROFILE = """
- {id: store, use: hames.store}
- {id: sessions, use: hames.sessions}
- {id: models, use: hames.models}
- {id: scripted, use: hames.testing.scripted}
- {id: prompts, use: hames.prompts.service, config: {persona: the persona of the host}}
- {id: policy, use: hames.policy}
- {id: trust, use: hames.trust, config: {default: always}}
- {id: tools, use: hames.tools}
- {id: web, use: hames.toolkit.web}
- {id: todo, use: hames.toolkit.todo}
- {id: plan, use: hames.toolkit.plan}
- {id: loop, use: hames.agents.loop}
- {id: agents, use: hames.agents}
- {id: workspaces, use: hames.workspaces, config: {watch: false, on_failure: FAILURE}}
"""

MODULE = '''
import asyncio
from decimal import Decimal
from fractions import Fraction

from pydantic import BaseModel

from hames.kernel import Mask, plugin
from hames.prompts import PROMPTS, Assemble, Section
from hames.tools import TOOLS, tool

VERSION = "@VERSION"
KEYS = {"a": Fraction, "b": Decimal}


class Config(BaseModel):
    name: str = "x-one"
    text: str = ""
    order: int = 0
    turns: int = 0
    deny: list[str] = []
    key: str = "a"
    fail: bool = False


async def turns(config):
    for _ in range(config.turns):
        await asyncio.sleep(0)
    if config.fail:
        raise RuntimeError("it was told to fail")


@plugin(config=Config, needs=(TOOLS,), name="offer")
async def offer(ctx, config):
    await turns(config)

    @tool("read", name=config.name)
    def body() -> str:
        """DOC"""
        return config.text

    import dataclasses
    made = dataclasses.replace(body, description=f"{config.text} of {VERSION}")
    ctx.use(TOOLS).registry.add(ctx, made.name, made, order=config.order)
    await turns(config)
    yield
    await turns(config)


@plugin(config=Config, needs=(PROMPTS,), name="section")
async def section(ctx, config):
    await turns(config)
    ctx.use(PROMPTS).section(ctx, config.name, f"section {config.text} of {VERSION}", order=config.order)
    yield
    await turns(config)


@plugin(config=Config, needs=(PROMPTS,), name="fact")
async def fact(ctx, config):
    ctx.use(PROMPTS).fact(ctx, config.name, lambda facts: f"fact {config.text} of {VERSION}", order=config.order)
    await turns(config)
    yield


@plugin(config=Config, needs=(PROMPTS,), name="listen")
async def listen(ctx, config):
    async def add(call, proceed):
        assembly = await proceed(call)
        assembly.sections.append(Section("heard", 1000, f"heard {config.text} of {VERSION}"))
        return assembly

    await turns(config)
    ctx.on(Assemble, add, order=config.order)
    yield
    await turns(config)


@plugin(config=Config, needs=(TOOLS,), name="mask")
async def mask(ctx, config):
    ctx.use(TOOLS).registry.mask(ctx, Mask(deny=frozenset(config.deny)))
    await turns(config)
    yield
    await turns(config)


@plugin(config=Config, needs=(TOOLS,), name="seal")
async def seal(ctx, config):
    ctx.use(TOOLS).registry.seal(ctx, Mask(deny=frozenset(config.deny)))
    await turns(config)
    yield
    await turns(config)


@plugin(config=Config, name="give_a")
async def give_a(ctx, config):
    await turns(config)
    ctx.provide(Fraction, f"{config.text} of {VERSION}")
    yield
    await turns(config)


@plugin(config=Config, name="give_b", needs=(Fraction,))
async def give_b(ctx, config):
    ctx.provide(Decimal, f"{config.text} of {VERSION} over {ctx.use(Fraction)}")
    await turns(config)
    yield


@plugin(config=Config, name="need", needs=(PROMPTS, Decimal))
async def need(ctx, config):
    ctx.use(PROMPTS).section(ctx, config.name, f"needs {ctx.use(Decimal)} of {VERSION}", order=config.order)
    yield
    await turns(config)


@plugin(config=Config, name="want", needs=(PROMPTS, TOOLS), wants=(Fraction, Decimal))
async def want(ctx, config):
    await turns(config)
    ctx.use(PROMPTS).section(ctx, config.name, f"wants {ctx.find(Fraction)} and {ctx.find(Decimal)} of {VERSION}", order=config.order)
    yield
'''

KINDS = ("offer", "section", "fact", "listen", "mask", "give_a", "give_b", "need", "want")
USES_NO_SERVICE_OF_A_ROW = frozenset({"offer", "section", "fact", "listen", "mask", "give_a"})
IDS = ("r0", "r1", "r2", "r3", "r4", "r5", "r6")
PLACES = ("", "", "g1", "g2", "inc")
PATCHES = {
    "todo": (
        "{id: todo, set: {disabled: true}}",
        "{id: todo, remove: true}",
        "{id: todo, replace: {use: './rows.py:offer', config: {name: todo_write}}}",
    ),
    "web": ("{id: web, set: {config: {TIMEOUT}}}", "{id: web, remove: true}"),
    "plan": ("{id: plan, set: {disabled: true}}", "{id: plan, replace: {use: './other.py:offer', config: {name: x-plan, turns: 2}}}"),
    "prompts": ("{id: prompts, set: {config: {persona: another one}}}", "{id: prompts, set: {config: {identity: false}}}"),
}
MISTAKES = (
    "",
    "",
    "- {id: r0",
    "- {id: zz, use: './nowhere.py'}",
    "- {id: zz, use: './rows.py:offer', config: {turns: many}}",
    "module",
    "fails",
)

PHASES = (Phase.explicit, Phase.generate, Phase.shrink)

configs = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["x-one", "x-two", "x-three", "todo_write", "persona"]),
        "text": st.sampled_from(["red", "green"]),
        "order": st.integers(-1, 1),
        "turns": st.integers(0, 2),
        "deny": st.lists(st.sampled_from(["todo_write", "web_*", "*plan*", "*"]), max_size=2, unique=True),
    },
)
ops = st.one_of(
    st.tuples(
        st.just("put"),
        st.sampled_from(IDS),
        st.sampled_from(KINDS),
        configs,
        st.sampled_from(PLACES),
        st.sampled_from(["rows", "other"]),
        st.integers(0, 6),
    ),
    st.tuples(st.just("drop"), st.sampled_from(IDS)),
    st.tuples(st.just("move"), st.sampled_from(IDS), st.integers(0, 6)),
    st.tuples(st.just("disable"), st.sampled_from(IDS)),
    st.tuples(st.just("patch"), st.sampled_from(sorted(PATCHES)), st.integers(-1, 2)),
    st.tuples(st.just("version"), st.sampled_from(["rows", "other"]), st.integers(0, 2)),
    st.tuples(st.just("isolate"), st.sampled_from(["g1", "g2"])),
    st.tuples(st.just("mistake"), st.sampled_from(MISTAKES)),
)
edits = st.lists(st.lists(ops, min_size=1, max_size=4), min_size=1, max_size=8)


@dataclass
class Files:
    """What the files of a workspace say."""

    rows: list[dict] = field(default_factory=list)
    patches: dict[str, str] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=lambda: {"rows": 0, "other": 0})
    isolated: set[str] = field(default_factory=set)
    mistake: str = ""

    def apply(self, op) -> None:
        kind, *rest = op
        at = {row["id"]: index for index, row in enumerate(self.rows)}
        if kind == "put":
            id, use, config, place, module, position = rest
            if id in at:
                del self.rows[at[id]]
            row = {"id": id, "kind": use, "config": {"name": f"x-{id}", **config}, "place": place, "module": module, "disabled": False}
            self.rows.insert(position, row)
        elif kind == "drop" and rest[0] in at:
            del self.rows[at[rest[0]]]
        elif kind == "move" and rest[0] in at:
            self.rows.insert(rest[1], self.rows.pop(at[rest[0]]))
        elif kind == "disable" and rest[0] in at:
            self.rows[at[rest[0]]]["disabled"] ^= True
        elif kind == "patch":
            choices = PATCHES[rest[0]]
            if 0 <= rest[1] < len(choices):
                self.patches[rest[0]] = choices[rest[1]]
            else:
                self.patches.pop(rest[0], None)
        elif kind == "version":
            self.versions[rest[0]] = rest[1]
        elif kind == "isolate":
            self.isolated ^= {rest[0]}
        elif kind == "mistake":
            self.mistake = rest[0]

    @staticmethod
    def row(row) -> str:
        use = f"./{row['module']}.py:{row['kind']}"
        return json.dumps({"id": row["id"], "use": use, "config": row["config"], **({"disabled": True} if row["disabled"] else {})})

    def write(self, directory: Path) -> None:
        place = directory / ".hames"
        place.mkdir(exist_ok=True)
        lines, included, groups = [], [], {}
        for row in self.rows:
            if row["place"] == "":
                lines.append(f"- {self.row(row)}")
            elif row["place"] == "inc":
                if not included:
                    lines.append("- include: more.yaml")
                included.append(f"- {self.row(row)}")
            elif row["place"] in groups:
                groups[row["place"]].append(self.row(row))
            else:
                groups[row["place"]] = [self.row(row)]
                lines.append(row["place"])
        for index, line in enumerate(lines):
            if line in groups:
                apart = ", isolate: {Fraction: true}" if line in self.isolated and self.knows_fraction else ""
                lines[index] = f"- {{id: {line}, group: [{', '.join(groups[line])}]{apart}}}"
        lines += [f"- {patch.replace('TIMEOUT', 'timeout: 7')}" for patch in self.patches.values()]
        if self.mistake == "fails":
            lines.append("- {id: zz, use: './rows.py:offer', config: {name: x-zz, fail: true, turns: 1}}")
        elif self.mistake not in ("", "module"):
            lines.append(self.mistake)
        for module, version in self.versions.items():
            text = MODULE.replace("@VERSION", f"{module} {version}") + ("\n)\n" if self.mistake == "module" else "")
            put(place / f"{module}.py", text)
        put(place / "more.yaml", "\n".join(included) or "[]")
        put(place / "compose.yaml", "\n".join(lines) or "[]")

    @property
    def knows_fraction(self) -> bool:
        return any(row["kind"] in ("give_b", "want") and not row["disabled"] for row in self.rows)

    def free(self) -> dict[str, str]:
        """Rows that use no service of another row, by path, with all that makes them what they are."""
        found = {}
        for row in self.rows:
            if row["kind"] in USES_NO_SERVICE_OF_A_ROW and not row["disabled"]:
                group = row["place"] if row["place"] in ("g1", "g2") else ""
                apart = group in self.isolated and self.knows_fraction
                path = f"{group}/{row['id']}" if group else row["id"]
                found[path] = json.dumps(
                    [row["kind"], row["config"], row["module"], self.versions[row["module"]], apart, self.patches.get("prompts")]
                )
        return found


def put(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def seen(host, scope) -> list[tuple]:
    """All names that a scope sees, in order, with what they are and whether they are its own."""
    found = []
    tools = host.get(TOOLS, scope)
    if tools is not None:
        found += [("tool", name, entry.value.description, entry.scope is scope) for name, entry in tools.registry.entries(scope).items()]
    prompts = host.get(PROMPTS, scope)
    if prompts is not None:
        facts = Facts(scope, "m", "/")
        for name, entry in prompts.sections.entries(scope).items():
            found.append(("section", name, entry.value(facts), entry.scope is scope))
        for name, entry in prompts.facts.entries(scope).items():
            found.append(("fact", name, entry.value.value(facts), entry.scope is scope))
        found += [("variable", name, "", entry.scope is scope) for name, entry in prompts.variables.entries(scope).items()]
    return found


async def whole(host, scope) -> dict:
    """Everything of a workspace that can be told apart, when nothing moves."""
    prompts = host.get(PROMPTS, scope)
    tools = host.get(TOOLS, scope)
    return {
        "seen": seen(host, scope),
        "owners": tools.registry.owners(scope) if tools is not None else None,
        "prompt": await prompts.assemble(host.ctx, Facts(scope, "m", "/")) if prompts is not None else None,
        "services": [host.get(key, scope) for key in (Fraction, Decimal)],
        "mounts": sorted((mount.label, mount.state) for mount in scope.mounts),
    }


def mounts(scope) -> dict[str, tuple]:
    """The rows of a scope by path, each with its mount and how often that has started."""
    anchor = next(mount for mount in scope.mounts if mount.parent not in scope.mounts)
    return {mount.label.removeprefix(f"{anchor.label}/"): (mount, mount.starts) for mount in scope.mounts if mount is not anchor}


@asynccontextmanager
async def opened(place: Path, failure: str, name: str):
    profile = place / f"{failure}.yaml"
    put(profile, PROFILE.replace("FAILURE", failure))
    async with running(profile, {STATE: place / f"state-{name}"}) as host:
        yield host


async def afresh(place: Path, directory: Path, failure: str, name: str) -> dict | str:
    """What a new host makes of the files: what it shows, or nothing if it refuses them."""
    async with opened(place, failure, name) as host:
        try:
            lease = await host.get(WORKSPACES).acquire(directory)
        except HamesError as error:
            assert len(host.root_scope.children) == 0
            return error.message
        found = await whole(host, lease.scope)
        await lease.release()
        return found


class Ticker:
    """Looks at each turn of the event loop."""

    def __init__(self, host, scope) -> None:
        self.views: list[list[tuple]] = []
        self._host, self._scope = host, scope

    async def __aenter__(self):
        self._task = asyncio.create_task(self._run())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_) -> None:
        self._task.cancel()
        await asyncio.wait((self._task,))
        if not self._task.cancelled():
            raise self._task.exception()

    async def _run(self) -> None:
        while True:
            view = seen(self._host, self._scope)
            if not self.views or self.views[-1] != view:
                self.views.append(view)
            await asyncio.sleep(0)


def plain(view) -> list[tuple]:
    return [entry[:3] for entry in view]


def inherited(view) -> list[tuple]:
    return [entry[:3] for entry in view if not entry[3]]


def check_between(views, old, new) -> None:
    """Nobody saw something of the new before all of it, nor anything of the host that the old hid."""
    for view in map(plain, views):
        assert view == plain(new) or set(view) <= set(plain(old)), (
            set(view) - set(plain(old)),
            "seen between",
            plain(old),
            "and",
            plain(new),
        )


def check_strictly(views, old, new) -> None:
    """Nobody saw a mixture: all of the old, all of the new, or a part of what both have."""
    both = set(plain(old)) & set(plain(new))
    for view in map(plain, views):
        assert view in (plain(old), plain(new)) or set(view) <= both, (set(view) - both, "seen between", plain(old), "and", plain(new))


async def follow(sequence, failure: str) -> None:
    with tempfile.TemporaryDirectory() as top:
        place = Path(top)
        directory = place / "repository"
        directory.mkdir()
        files = Files()
        files.write(directory)
        before = asyncio.all_tasks()
        async with opened(place, failure, "live") as host, opened(place, failure, "mirror") as mirror:
            workspaces = host.get(WORKSPACES)
            lease = await workspaces.acquire(directory)
            scope = lease.scope
            good = await whole(host, scope)  # of the last pass that went well
            stood, running_now = files.free(), mounts(scope)
            outcome = ""
            for edit in [*sequence, [("mistake", "")]]:
                for op in edit:
                    files.apply(op)
                files.write(directory)
                old = seen(host, scope)
                async with asyncio.timeout(SOON), Ticker(host, scope) as ticker:
                    info = await workspaces.reload(directory)
                new = seen(host, scope)
                ticker.views.append(new)
                try:
                    reference = await mirror.get(WORKSPACES).acquire(directory)
                except HamesError as error:
                    assert info.reason in ("invalid", "start"), (info, error.message)
                else:
                    if mirror.get(WORKSPACES).get(directory).trusted:
                        assert info.reason == "", info
                        assert await whole(host, scope) == await whole(mirror, reference.scope)
                    else:  # nobody can tell what it would execute
                        assert info.reason == "invalid", info
                    await reference.release()
                now, are = files.free(), mounts(scope)
                if info.reason == "":
                    check_between(ticker.views, old, new)
                    good = await whole(host, scope)
                elif failure == "empty":
                    assert not are
                    assert set(plain(new)) <= set(inherited(good["seen"]))
                    if info.reason == "invalid" and outcome == "":
                        assert plain(new) == inherited(good["seen"])
                    for view in ticker.views:
                        assert (
                            plain(view) == plain(old)
                            or set(plain(view)) <= set(inherited(good["seen"]))
                            or not (set(plain(view)) - set(plain(old)))
                        )
                else:
                    assert await whole(host, scope) == good
                    for view in ticker.views:
                        assert set(plain(view)) <= set(plain(old)), set(plain(view)) - set(plain(old))
                    if info.reason == "invalid":
                        now = stood
                        assert are == running_now
                if info.reason == "" or failure == "keep":
                    for path, what in now.items():
                        if stood.get(path) == what and path in running_now and (outcome == "" or failure == "keep"):
                            assert are[path] == running_now[path], (path, "was restarted")
                if info.reason == "":
                    stood = now
                elif failure == "empty":
                    stood = {}
                running_now, outcome = are, info.reason
            final = await afresh(place, directory, failure, "fresh")
            if outcome == "":
                assert final == await whole(host, scope)
            else:
                assert isinstance(final, str)
            await lease.release()
            assert not host.root_scope.children
        assert asyncio.all_tasks() == before


@pytest.mark.parametrize("failure", ["empty", "keep"])
@settings(max_examples=int(os.environ.get("HAMES_EXAMPLES", "25")), deadline=None, suppress_health_check=list(HealthCheck), phases=PHASES)
@given(sequence=edits)
def test_after_any_edits_everything_is_as_a_fresh_host_reads_it(failure, sequence):
    asyncio.run(follow(sequence, failure))


@asynccontextmanager
async def edited(tmp_path: Path, lines: str, failure: str = "empty"):
    """A workspace, and what edits its composition and looks at what is seen on the way."""
    directory = tmp_path / "repository"
    Files().write(directory if directory.exists() else made(directory))
    put(directory / ".hames" / "compose.yaml", lines)
    async with opened(tmp_path, failure, "live") as host:
        lease = await host.get(WORKSPACES).acquire(directory)

        async def again(lines: str):
            put(directory / ".hames" / "compose.yaml", lines)
            async with asyncio.timeout(SOON), Ticker(host, lease.scope) as ticker:
                info = await host.get(WORKSPACES).reload(directory)
            return info, ticker.views

        yield host, lease.scope, again
        await lease.release()


def made(directory: Path) -> Path:
    directory.mkdir()
    return directory


async def test_a_row_whose_service_is_that_of_the_host_again_starts_with_it(tmp_path):
    mine = "- {id: mine, use: './rows.py:section'}\n"
    async with edited(tmp_path, mine) as (host, scope, again):
        before = await whole(host, scope)
        assert (await again(mine + "- {id: prompts, set: {config: {persona: another}}}\n"))[0].reason == ""
        assert (await again(mine))[0].reason == ""
        assert await whole(host, scope) == before


@pytest.mark.parametrize("kind", ["mask", "seal"])
async def test_what_a_row_hides_of_the_host_stays_hidden_while_that_row_changes_and_after_it_fails(tmp_path, kind):
    def hiding(text: str, **config) -> str:
        settings = {"deny": ["todo_write"], "text": text, "turns": 3, **config}
        return f"- {json.dumps({'id': 'mine', 'use': f'./rows.py:{kind}', 'config': settings})}\n"

    async with edited(tmp_path, hiding("one")) as (host, scope, again):
        tools = host.get(TOOLS, scope).registry
        assert "todo_write" not in tools.view(scope)
        info, views = await again(hiding("two"))
        assert info.reason == ""
        assert not [view for view in views if "todo_write" in [entry[1] for entry in view]]
        for bad in (hiding("three", fail=True), "- {id: mine"):
            info, views = await again(bad)
            assert info.reason in ("start", "invalid")
            assert not [view for view in views if "todo_write" in [entry[1] for entry in view]]
            assert "todo_write" not in tools.view(scope)
        assert (await again("[]"))[0].reason == ""
        assert "todo_write" in tools.view(scope)


async def test_a_mask_that_names_what_another_row_offers_is_judged_as_a_fresh_host_judges_it(tmp_path):
    masks = "- {id: first, use: './rows.py:mask', config: {deny: [x-later]}}\n"
    offers = "- {id: second, use: './rows.py:offer', config: {name: x-later}}\n"
    async with edited(tmp_path, offers) as (_, _, again):
        info, _ = await again(masks + offers)
        there = await afresh(tmp_path, tmp_path / "repository", "empty", "fresh")
        assert bool(info.reason) == isinstance(there, str), (info.reason, there)


async def test_the_first_acquire_of_a_trusted_directory_whose_file_is_no_yaml_is_refused(tmp_path):
    found = await afresh(tmp_path, broken(tmp_path), "empty", "fresh")
    assert isinstance(found, str)


def broken(tmp_path: Path) -> Path:
    directory = made(tmp_path / "repository")
    Files().write(directory)
    put(directory / ".hames" / "compose.yaml", "- {id: mine")
    return directory


OFFER = "- {id: mine, use: './rows.py:offer', config: {turns: 2}}\n"
SHADOW = "- {id: mine, use: './rows.py:offer', config: {name: todo_write, turns: 2}}\n"
WANT = "- {id: wants, use: './rows.py:want'}\n"
GIVE = "- {id: gives, use: './rows.py:give_a', config: {turns: 2}}\n"
WITHOUT_PLAN = "- {id: plan, remove: true}\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(OFFER, WITHOUT_PLAN, id="a row stops and a row of the host is hidden"),
        pytest.param(SHADOW, "[]", id="what was shadowed shows again"),
        pytest.param(WITHOUT_PLAN, SHADOW, id="what was hidden shows again and another one is shadowed"),
        pytest.param(OFFER, OFFER.replace("turns: 2", "turns: 3"), id="a row starts anew"),
        pytest.param(WANT, WANT + GIVE, id="a row gets what it wants"),
        pytest.param(WANT + GIVE, WANT, id="a row loses what it wants"),
        pytest.param(WANT + GIVE, WANT + GIVE.replace("2", "3") + OFFER, id="a row gets another one of what it wants"),
    ],
)
async def test_on_the_way_from_one_composition_to_another_nobody_sees_a_mixture(tmp_path, before, after):
    async with edited(tmp_path, before) as (host, scope, again):
        old = seen(host, scope)
        info, views = await again(after)
        assert info.reason == "", info.message
        check_strictly(views, old, seen(host, scope))
