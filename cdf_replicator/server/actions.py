"""Serve the forms that need the control token: actions with a confirmation, and the dead letters of a route."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, HTTPException, Request, Response, status
from pydantic import ValidationError

from cdf_replicator.server import access, inquiries
from cdf_replicator.server.commands import BODIES
from cdf_replicator.server.pages import actions, dead_letters
from cdf_replicator.server.pages import route as route_page
from cdf_replicator.server.pages.environment import segment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdf_replicator.monitoring.status_store import StatusStore
    from cdf_replicator.server.commands import Action
    from cdf_replicator.server.control import Control
    from cdf_replicator.server.queries import Queries

FORM: Final = "application/x-www-form-urlencoded"
MOST_FIELDS: Final = 20
ROOT, LETTERS_ROOT = "../../../", "../../"
"""Relative addresses of the first page, since a proxy may serve it below a path."""
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


Form = Annotated[dict[str, str], Depends(_form)]


def router(board: StatusStore, control: Control, queries: Queries | None) -> APIRouter:
    """Return the endpoints of the forms. Without ``queries`` there is no dry run and no list of dead letters."""
    made, forms = APIRouter(prefix="/routes/{name}", include_in_schema=False), _Forms(board, control, queries)
    own_pages = [Depends(access.same_origin)]
    made.add_api_route("/actions/{action}", forms.confirm, methods=["GET"])
    made.add_api_route("/actions/{action}", forms.execute, methods=["POST"], dependencies=own_pages)
    made.add_api_route("/dead-letters", forms.show_letters_form, methods=["GET"])
    made.add_api_route("/dead-letters", forms.list_letters, methods=["POST"], dependencies=own_pages)
    return made


@dataclass(frozen=True, slots=True)
class _Forms:
    board: StatusStore
    control: Control
    queries: Queries | None

    def confirm(self, name: str, action: str, request: Request) -> Response:
        """Show what an action will do, with a form that executes it."""
        given = request.query_params
        return self._confirmation(name, action, {key: ",".join(given.getlist(key)) for key in given})

    def execute(self, name: str, action: str, form: Form) -> Response:
        """Start the action and show the route with its progress, or show the numbers of a dry run."""
        token, step = form.pop("token", ""), form.pop("step", "")
        if not access.matches(token, [self.control.token]):
            return _unauthorized(self._confirmation(name, action, form, WRONG, status.HTTP_401_UNAUTHORIZED))
        kind = _known(action)
        if name not in self.control.routes or kind is None:
            return route_page.missing(self.board.snapshot(), name, ROOT)
        try:
            body = BODIES[kind].model_validate(form)
            if step == actions.PLAN:
                return self._confirmation(name, action, form, plan=inquiries.dry_run(self.queries, name, body))
            self.control.execute(kind, name, body)
        except (ValidationError, inquiries.NoAnswerError, HTTPException) as error:
            return self._confirmation(name, action, form, *_problem(error))
        return Response(status_code=status.HTTP_303_SEE_OTHER, headers={"Location": f"../../{segment(name)}#commands"})

    def show_letters_form(self, name: str) -> Response:
        """Show the form for the token."""
        now = self.board.snapshot()
        found = route_page.find(now, name)
        return dead_letters.render(now, found) if found else route_page.missing(now, name, LETTERS_ROOT)

    def list_letters(self, name: str, form: Form) -> Response:
        """List the open dead letters of a route."""
        now = self.board.snapshot()
        found = route_page.find(now, name)
        if found is None:
            return route_page.missing(now, name, LETTERS_ROOT)
        if not access.matches(form.get("token", ""), [self.control.token]):
            return _unauthorized(dead_letters.render(now, found, None, WRONG, status.HTTP_401_UNAUTHORIZED))
        try:
            return dead_letters.render(now, found, inquiries.dead_letters(self.queries, name))
        except inquiries.NoAnswerError as error:
            return dead_letters.render(now, found, None, str(error))

    def _confirmation(
        self,
        name: str,
        action: str,
        given: dict[str, str],
        problem: str = "",
        status_code: int = status.HTTP_200_OK,
        plan: Sequence[str] = (),
    ) -> Response:
        now = self.board.snapshot()
        found = route_page.find(now, name)
        kind = _known(action)
        if found is None or kind is None:
            return route_page.missing(now, name, ROOT)
        return actions.render(
            now,
            found,
            kind,
            self.control.submitted(name),
            given=given,
            plan=plan,
            can_plan=self.queries is not None and kind in actions.PLANNED,
            problem=problem,
            status_code=status_code,
        )


def _known(action: str) -> Action | None:
    return next((each for each in actions.ACTIONS if each == action), None)


def _unauthorized(response: Response) -> Response:
    response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _problem(error: Exception) -> tuple[str, int]:
    """Return why a form was not executed, and the code of the answer."""
    match error:
        case ValidationError():
            texts = (f"{each['loc'][0] if each['loc'] else 'form'}: {each['msg']}" for each in error.errors())
            return "; ".join(texts), status.HTTP_422_UNPROCESSABLE_CONTENT
        case HTTPException():
            return str(error.detail), error.status_code
    return str(error), status.HTTP_200_OK
