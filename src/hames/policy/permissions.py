"""The policy that comes with Hames: a mode, rules, and what people have allowed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hames.policy.grants import Grants
from hames.policy.port import Answer, Capability, Decision, Mode, ToolRequest, narrowest
from hames.policy.rules import Rule, fits, lasting

#: What each mode lets a call do without a question, and what it asks about. Everything else it denies.
FREE: dict[Mode, frozenset[Capability]] = {
    "read-only": frozenset({"read", "execute", "delegate"}),
    "workspace-write": frozenset({"read", "write", "execute", "delegate"}),
    "full": frozenset({"read", "write", "execute", "network", "delegate"}),
}
ASKED: dict[Mode, frozenset[Capability]] = {
    "read-only": frozenset({"network"}),
    "workspace-write": frozenset({"network"}),
    "full": frozenset(),
}


class Permissions:
    """Judges calls.

    A mode says what is free, asked and denied; rules and grants answer what it asks, and no rule widens what it denies.

    :param mode: gives the mode of the composition.
    """

    def __init__(self, mode: Callable[[], Mode], rules: Sequence[Rule], grants: Grants) -> None:
        self._mode = mode
        self._rules = rules
        self._grants = grants
        self._sessions: dict[str, list[tuple[str, dict[str, str]]]] = {}

    def mode(self, request: ToolRequest) -> Mode:
        return narrowest(self._mode(), request.ceiling)

    def decide(self, request: ToolRequest) -> Decision:
        mode = self.mode(request)
        matching = [rule for rule in self._rules if rule.matches(request)]
        for rule in matching:
            if rule.verdict == "deny":
                return Decision("deny", rule.reason or f"a rule denies it: {rule}", mode, False, (f"rule: {rule}",))
        if mode == "full":
            asked = [f"a rule asks: {rule.reason or rule}" for rule in matching if rule.verdict == "ask"]
            return self._answered(request, mode, asked, matching) if asked else Decision("allow", because=("mode full allows everything",))
        denied = self._denied(request, mode)
        if denied:
            return Decision("deny", denied, mode, False, (f"mode {mode}: {denied}",))
        asked = self._asked(request, mode) + [f"a rule asks: {rule.reason or rule}" for rule in matching if rule.verdict == "ask"]
        if asked:
            return self._answered(request, mode, asked, matching)
        network = any(rule.network for rule in matching if rule.verdict == "allow")
        return Decision("allow", "", mode, network, (f"mode {mode} allows it",))

    @staticmethod
    def _denied(request: ToolRequest, mode: Mode) -> str:
        needs = set(request.capabilities)
        executes = "execute" in needs
        if mode == "read-only":
            if request.unconfined:
                return "mode read-only runs nothing outside of the sandbox"
            if executes and not request.enforced:
                return "mode read-only runs commands only where the system confines them, and nothing does here (see 'hames doctor')"
            if executes:
                needs.discard("write")  # the sandbox holds it
        beyond = needs - FREE[mode] - ASKED[mode]
        return f"{request.name} may {' and '.join(sorted(beyond))}, which mode {mode} does not allow" if beyond else ""

    @staticmethod
    def _asked(request: ToolRequest, mode: Mode) -> list[str]:
        reasons: list[str] = []
        if request.unconfined:
            return [f"it is to run outside of the sandbox: {request.unconfined}"]
        if asked := request.capabilities & ASKED[mode]:
            reasons.append(f"{request.name} may use the {' and the '.join(sorted(asked))}")
        reasons += [f"{path} lies outside of the workspace" for path in request.outside]
        if not request.enforced and {"execute", "write"} <= request.capabilities:
            reasons.append("nothing here confines commands, and this one may write")
        return reasons

    def _answered(self, request: ToolRequest, mode: Mode, asked: list[str], matching: Sequence[Rule]) -> Decision:
        """What is asked, unless a rule or a grant has answered it."""
        access: Mode = "full" if request.unconfined else mode
        opens = bool(request.unconfined) or "execute" not in request.capabilities  # such a call opens the network by itself
        if not any(rule.verdict == "ask" for rule in matching):
            allowing = [rule for rule in matching if rule.verdict == "allow" and (not request.unconfined or "unconfined" in rule.when)]
            if allowing:
                network = opens or any(rule.network for rule in allowing)
                return Decision("allow", "", access, network, (*asked, *(f"rule: {rule}" for rule in allowing)))
        opens |= "network" in request.capabilities
        for tool, when in self._sessions.get(request.session, ()):
            if tool == request.name and fits(when, request):
                return Decision("allow", "", access, opens, (*asked, "it was allowed for this session"))
        for grant in self._grants.of(request.cwd):
            if grant.matches(request):
                return Decision("allow", "", access, opens, (*asked, f"it was allowed always (grant {grant.id})"))
        return Decision("ask", "; ".join(asked), access, opens or mode == "full", tuple(asked), lasting(request))

    def remember(self, request: ToolRequest, answer: Answer) -> None:
        if answer == "session":
            self._sessions.setdefault(request.session, []).append((request.name, lasting(request)))
        elif answer == "always":
            self._grants.add(request.cwd, request.name, lasting(request))
