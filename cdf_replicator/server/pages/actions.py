"""Render the actions that an operator may take on a route: what is offered, and the confirmation of what will happen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cdf_replicator.server.commands import BODIES, VERIFY
from cdf_replicator.server.pages.environment import answer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from fastapi import Response

    from cdf_replicator.monitoring.status import RouteStatus, Status
    from cdf_replicator.server.commands import Action

ACTIONS: Final = tuple(BODIES)
PLANNED: Final = ("replay", "resync")
"""Actions with a dry run."""
PLAN: Final = "plan"
"""Value of the button that starts the dry run."""
PAUSED: Final = "The route is paused: resume it first."
NOT_COMPARED: Final = "The target is compared while the route runs and has delivered a version, without a replay."
NO_LETTERS: Final = "The route has no open dead letter."


class Offer(NamedTuple):
    """An action of a route's page; ``refusal`` says why it can't be taken now, and is empty if it can."""

    action: Action
    refusal: str


class Field(NamedTuple):
    """A parameter of an action, as a field of its form."""

    name: str
    label: str
    kind: str
    value: str
    help: str
    required: bool = False


class Submitted(NamedTuple):
    """A command that came over HTTP with the token of this name, and its progress.

    ``state`` is waiting, running, done or failed, or unknown once the answer is no longer kept.
    """

    id: str
    route: str
    action: Action
    at: datetime
    token: str
    state: str = "waiting"
    message: str = ""
    ratio: float = 0.0

    @property
    def has_ended(self) -> bool:
        return self.state in ("done", "failed", "unknown")

    def after(self, state: str, message: str, ratio: float) -> Submitted:
        return self._replace(state=state, message=message, ratio=ratio)


def offers(route: RouteStatus) -> list[Offer]:
    return [Offer(action, _refusal(route, action)) for action in ACTIONS]


def render(
    status: Status,
    route: RouteStatus,
    action: Action,
    submitted: Sequence[Submitted],
    *,
    given: Mapping[str, str],
    plan: Sequence[str] = (),
    can_plan: bool = False,
    problem: str = "",
    status_code: int = 200,
) -> Response:
    """Return the confirmation of an action with its form.

    Args:
        status: The status.
        route: The route.
        action: The action.
        submitted: Commands for the route that came over HTTP.
        given: Parameters in the address of the confirmation, by name.
        plan: Results of a dry run.
        can_plan: Whether the form offers a dry run.
        problem: Why the action was not accepted.
        status_code: Code of the answer.
    """
    return answer(
        "action.html",
        status_code,
        status=status,
        route=route,
        action=action,
        refusal=_refusal(route, action),
        plan=plan,
        plan_step=PLAN if can_plan else "",
        fields=fields(route, action, given),
        running=[command for command in submitted if not command.has_ended],
        problem=problem,
    )


def fields(route: RouteStatus, action: Action, given: Mapping[str, str]) -> list[Field]:
    """Return the parameters of an action."""
    letters = Field("letters", "Dead letters", "text", given.get("letters", ""), "First characters of ids. Empty: all.")
    first = given.get("starting_version", str(max(0, route.delivered_version or 0)))
    last = Field(
        "ending_version",
        "Last version",
        "number",
        given.get("ending_version", ""),
        "Empty: to the newest version, then the stream continues.",
    )
    by_action = {
        "replay": [
            Field("starting_version", "First version", "number", first, "Commit version of the source table.", True),
            *([last] if route.definition and route.definition.mode == "append" else []),
        ],
        "resync": [
            Field(
                "max_removed_share",
                "Largest share to remove",
                "share",
                given.get("max_removed_share", ""),
                "From 0 to 1, such as 0.2. Empty: CDF_DELIVERY__MAX_REMOVED_SHARE.",
            )
        ],
        "redrive": [letters],
        "discard": [letters],
    }
    return by_action.get(action, [])


def _refusal(route: RouteStatus, action: Action) -> str:
    """Return why an action can't be taken now; empty if it can."""
    paused, letters = route.state == "paused", action in ("redrive", "discard")
    if action == "resume":
        return "" if route.state in ("paused", "halted") else "The route is neither paused nor halted."
    if action == "pause":
        return "The route is paused already." if paused else ""
    if action == VERIFY:
        return "" if route.is_undisturbed else NOT_COMPARED
    if letters and not route.dead_letters:
        return NO_LETTERS
    if action == "redrive" and route.definition and route.definition.mode == "append":
        return "The sink keeps every change, so a present row can't replace a rejected change. Replay its versions."
    return PAUSED if paused and action != "discard" else ""
