"""Serve the forms of the actions: a confirmation, and its execution through the command queue with the control token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, HTTPException, Request, Response, status
from pydantic import ValidationError

from cdf_replicator.server import access
from cdf_replicator.server.commands import BODIES
from cdf_replicator.server.pages import actions
from cdf_replicator.server.pages import route as route_page
from cdf_replicator.server.pages.environment import segment

if TYPE_CHECKING:
    from cdf_replicator.monitoring.status_store import StatusStore
    from cdf_replicator.server.control import Control

FORM: Final = "application/x-www-form-urlencoded"
MOST_FIELDS: Final = 20
ROOT: Final = "../../../"
"""Relative address of the first page, since a proxy may serve it below a path."""
WRONG: Final = "The token is not that of CDF_HTTP__TOKEN. Nothing was done."


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form; a repeated field is joined by commas. The server limits the body."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        raise HTTPException(status.HTTP_415_UNSUPPORTED_MEDIA_TYPE, f"Send {FORM}.")
    try:
        found = parse_qs((await request.body()).decode(), max_num_fields=MOST_FIELDS)
    except ValueError as error:
        raise HTTPException(status.HTTP_400_BAD_REQUEST, "The form can't be read.") from error
    return {name: ",".join(values) for name, values in found.items()}


def router(board: StatusStore, control: Control) -> APIRouter:
    """Return the endpoints of the forms."""
    made = APIRouter(prefix="/routes/{name}/actions", include_in_schema=False)

    def confirmation(
        name: str, action: str, given: dict[str, str], problem: str = "", status_code: int = status.HTTP_200_OK
    ) -> Response:
        now = board.snapshot()
        found = route_page.find(now, name)
        kind = next((each for each in actions.ACTIONS if each == action), None)
        if found is None or kind is None:
            return route_page.missing(now, name, ROOT)
        submitted = control.submitted(name)
        return actions.render(now, found, kind, submitted, given=given, problem=problem, status_code=status_code)

    @made.get("/{action}")
    def confirm(name: str, action: str, request: Request) -> Response:
        """Show what an action will do, with a form that executes it."""
        return confirmation(name, action, dict(request.query_params))

    @made.post("/{action}", dependencies=[Depends(access.same_origin)])
    def execute(name: str, action: str, form: Annotated[dict[str, str], Depends(_form)]) -> Response:
        """Give the command to the queue, and show the route with its progress."""
        token = form.pop("token", "")
        if not access.matches(token, [control.token]):
            response = confirmation(name, action, {}, WRONG, status.HTTP_401_UNAUTHORIZED)
            response.headers["WWW-Authenticate"] = "Bearer"
            return response
        if name not in control.routes or action not in BODIES:
            return route_page.missing(board.snapshot(), name, ROOT)
        try:
            control.submit(BODIES[action].model_validate(form).command(action, name))
        except ValidationError as error:
            problem = "; ".join(
                f"{each['loc'][0] if each['loc'] else 'form'}: {each['msg']}" for each in error.errors()
            )
            return confirmation(name, action, form, problem, status.HTTP_422_UNPROCESSABLE_CONTENT)
        except HTTPException as error:
            return confirmation(name, action, form, str(error.detail), error.status_code)
        return Response(status_code=status.HTTP_303_SEE_OTHER, headers={"Location": f"../../{segment(name)}#commands"})

    return made
