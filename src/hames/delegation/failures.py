"""Every way in which a task can fail, in one table: the documentation, the help and the tests are made of it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from hames.content.errors import HamesError

Axis = Literal["admission", "liveness", "publication", "outcome"]
Fault = Literal["none", "child", "infrastructure"]
Retry = Literal["never", "after correction", "new task", "by itself"]
NextAction = Literal["correct_request", "check_status", "continue", "read_text", "stop_and_report", "none"]

Status = Literal[
    "completed", "max-tokens", "refusal", "aborted", "budget", "invalid", "blocked", "rejected", "interrupted", "error", "unknown"
]

DONE, FAULT, INVALID, PENDING, REJECTED, ENDED, CANCELLED = 0, 1, 2, 3, 4, 5, 130
"""Exit statuses of commands."""


class Failure(NamedTuple):
    """One way.

    :param axis: what is not as it should be: ``admission`` was refused and nothing has started; ``liveness`` did not end as it
        should; ``publication`` of an outcome failed; ``outcome`` is the task's own.
    :param fault: whose it is.
    :param retry: whether the same thing may be tried again.
    :param exit: the exit status of a command that ends with it.
    :param status: that of an outcome with this code; ``rejected`` where there is none.
    """

    code: str
    axis: Axis
    fault: Fault
    retry: Retry
    next_action: NextAction
    exit: int
    meaning: str
    status: Status = "error"


def _refused(code: str, meaning: str, exit: int = INVALID) -> Failure:
    return Failure(code, "admission", "none", "after correction", "correct_request", exit, meaning, "rejected")


TABLE = (
    _refused("SPEC_INVALID", "The description of the task contradicts itself or lacks something."),
    _refused("RUNNER_UNKNOWN", "No runner of that name is registered."),
    _refused("OPTION_UNSUPPORTED", "The runner cannot do something that was asked for, or cannot enforce it."),
    _refused("SCHEMA_INVALID", "The schema says something that is not enforced, or that no value can follow."),
    _refused("ROLE_UNKNOWN", "There is no role of that name."),
    _refused("ROLE_INVALID", "The file of the role is wrong."),
    _refused("ROLE_TOOLS_MISSING", "A tool that the role needs is not there."),
    _refused("MODEL_UNKNOWN", "The model cannot be used as it is named."),
    _refused("PRICE_UNKNOWN", "Cost is limited, and nobody knows what the model costs."),
    _refused("MODEL_NOT_ALLOWED", "This deployment lets tasks use other models only."),
    _refused("TOOL_UNKNOWN", "A tool that was asked for does not exist."),
    _refused("GRANT_EXCEEDED", "The task would get more than whoever starts it may hand down."),
    _refused("DIRECTORY_UNKNOWN", "The directory to work in does not exist."),
    _refused("INPUT_UNKNOWN", "A file that was given along is not in the store."),
    _refused("TASK_UNKNOWN", "There is no task of that name."),
    _refused("TASK_CONFLICT", "There is a task of that name already, and it is another one."),
    _refused("BUDGET_EXCEEDED", "More is asked for than whoever starts it has left.", REJECTED),
    _refused("DEPTH_EXCEEDED", "The task would stand deeper in the tree than is allowed.", REJECTED),
    _refused("TREE_FULL", "As many tasks as are allowed have been started from one conversation.", REJECTED),
    _refused("PERSISTENCE_UNAVAILABLE", "A conversation is to be kept, and nothing can be written.", REJECTED),
    _refused("NOT_CONTINUABLE", "The task kept no conversation: it was not started for that."),
    _refused("CONVERSATION_GONE", "The conversation has been removed, or never came to be."),
    _refused("CONVERSATION_BUSY", "Another process works on the conversation.", REJECTED),
    _refused("UNAUTHORIZED", "Only whoever started it, or a person, may speak to it.", REJECTED),
    _refused("ATTEMPT_UNNAMED", "Earlier work failed and stands open, and this does not say whether it is another attempt at it."),
    _refused("ATTEMPT_UNKNOWN", "The conversation has made no attempt of that name."),
    _refused("REASON_NEEDED", "Another attempt needs a reason that the outcome of the earlier one does not give."),
    _refused("SAME_WORK", "The same was tried, and trying it again unchanged is of no use."),
    _refused("TOOL_LACKING", "The role has said that it lacks a tool or a permission for this."),
    _refused("FRESH_NEEDED", "After an error the work is given as a fresh task, not in the same conversation."),
    _refused("STILL_RUNNING", "The attempt that this would follow has not ended.", REJECTED),
    _refused("STRUCK_OUT", "The work has failed as often as it may; the user decides.", REJECTED),
    _refused("PARENT_GONE", "Whoever starts it is about to end.", REJECTED),
    Failure("LAUNCH_FAILED", "outcome", "infrastructure", "by itself", "stop_and_report", FAULT, "The runner could not begin."),
    Failure("RUNNER_FAILED", "outcome", "infrastructure", "by itself", "stop_and_report", FAULT, "The runner broke while it worked."),
    Failure("MODEL_FAILED", "outcome", "infrastructure", "by itself", "continue", FAULT, "The model's provider failed for good."),
    Failure("INTERNAL", "outcome", "infrastructure", "new task", "stop_and_report", FAULT, "Something of Hames failed; the log has it."),
    Failure("MODEL_REJECTED", "outcome", "child", "new task", "stop_and_report", FAULT, "The model could not answer the request."),
    Failure("NO_FINAL_MESSAGE", "outcome", "child", "new task", "continue", ENDED, "It ended and said nothing."),
    Failure("SCHEMA_MISSED", "outcome", "child", "new task", "read_text", ENDED, "It gave no value that follows the schema.", "invalid"),
    Failure("MAX_TOKENS", "outcome", "child", "new task", "continue", ENDED, "An answer was too long for the model.", "max-tokens"),
    Failure("REFUSAL", "outcome", "child", "never", "stop_and_report", ENDED, "The model refused.", "refusal"),
    Failure("BUDGET", "outcome", "none", "new task", "continue", ENDED, "What it might spend is spent.", "budget"),
    Failure("REPEATED", "outcome", "child", "new task", "continue", ENDED, "It made the same call again and again.", "budget"),
    Failure("DEADLINE", "outcome", "none", "new task", "continue", ENDED, "Its time was over.", "budget"),
    Failure("IDLE", "outcome", "none", "new task", "continue", ENDED, "Nothing happened for too long.", "budget"),
    Failure("CANCELLED", "outcome", "none", "new task", "none", CANCELLED, "Somebody cancelled it.", "aborted"),
    Failure("PARENT_ENDED", "outcome", "none", "new task", "none", CANCELLED, "Whoever started it was cancelled or has ended.", "aborted"),
    Failure("HOST_ENDED", "outcome", "infrastructure", "new task", "continue", ENDED, "The process that ran it was ended.", "interrupted"),
    Failure("HOST_DIED", "liveness", "infrastructure", "new task", "continue", ENDED, "The process that ran it died.", "interrupted"),
    Failure("NOT_CLOSED", "liveness", "infrastructure", "never", "stop_and_report", FAULT, "It did not heed its cancellation in time."),
    Failure("STORAGE_FAILED", "publication", "infrastructure", "never", "check_status", FAULT, "Its outcome could not be recorded."),
    Failure("OUTCOME_UNKNOWN", "publication", "infrastructure", "never", "stop_and_report", FAULT, "Nobody knows how it ended.", "unknown"),
)

FAILURES = {failure.code: failure for failure in TABLE}


class Refused(HamesError):
    """A task is refused, and nothing has started.

    :param code: one of the table whose axis is ``admission``.
    """

    def __init__(self, code: str, message: str, *, remedy: str = "", owner: str = "") -> None:
        super().__init__(message, remedy=remedy, owner=owner, code=code)
        self.failure = FAILURES[code]
        self.exit_status = self.failure.exit  # pyright: ignore[reportAttributeAccessIssue]
