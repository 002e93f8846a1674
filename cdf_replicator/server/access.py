"""Check the tokens of callers: one for the control endpoints, and one for those that only read, if it is configured."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlsplit

from fastapi import Depends, HTTPException, Request, status
from fastapi.security import HTTPAuthorizationCredentials, HTTPBasic, HTTPBasicCredentials, HTTPBearer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

REALM: Final = "cdf-replicator"
Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]
Basic = Annotated[HTTPBasicCredentials | None, Depends(HTTPBasic(realm=REALM, auto_error=False))]


def require(given: str, tokens: Collection[str], *, variable: str, challenge: str) -> None:
    """Raise the error of a wrong token.

    Args:
        given: What the caller sent; empty if nothing.
        tokens: Those that are accepted.
        variable: The setting that holds the token.
        challenge: The scheme that the answer names.
    """
    if not matches(given, tokens):
        raise HTTPException(
            status.HTTP_401_UNAUTHORIZED,
            f"Send the token of {variable}: Authorization: Bearer …",
            {"WWW-Authenticate": challenge},
        )


def require_control(bearer: Bearer, tokens: Collection[str]) -> None:
    """Raise the error of a caller that may not control the service, or read rows.

    Args:
        bearer: What the caller sent; None if nothing.
        tokens: Those that are accepted.
    """
    given = bearer.credentials if bearer else ""
    require(given, tokens, variable="CDF_HTTP__TOKEN", challenge="Bearer")


def matches(given: str, tokens: Collection[str]) -> bool:
    """Return whether a text is one of the tokens, in a time that does not depend on the text."""
    return any(hmac.compare_digest(given.encode(), token.encode()) for token in tokens)


def same_origin(request: Request) -> None:
    """Refuse a form that a page of another site sends. The token in the form is the first protection.

    A browser sends Sec-Fetch-Site over TLS and to this machine, and Origin otherwise. A proxy may change Host, so the first
    decides if it is present.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    host = urlsplit(origin).netloc if origin else ""
    foreign = (
        site not in ("same-origin", "none") if site else origin is not None and host != request.headers.get("host")
    )
    if foreign:
        raise HTTPException(status.HTTP_403_FORBIDDEN, "A page of another site may not send this form.")


def reader(tokens: Collection[str]) -> Callable[..., None]:
    """Return the dependency of the endpoints that only read. A browser sends the token as a password."""

    def check(bearer: Bearer, basic: Basic) -> None:
        given = bearer.credentials if bearer else basic.password if basic else ""
        require(given, tokens, variable="CDF_HTTP__READ_TOKEN", challenge=f'Basic realm="{REALM}"')

    return check
