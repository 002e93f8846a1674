"""Hide secrets in errors, in ``config show`` and on the status page, and make the texts of rows printable."""

from __future__ import annotations

import re
from typing import Any, Final

from pydantic import SecretBytes, SecretStr

HIDDEN: Final = "********"
SECRET_GROUPS: Final = ("sinks", "http", "spark")
"""Groups of settings of which a value in the wrong place may be a secret."""
SHOWN_LENGTH: Final = 200

# A credential may hold a comma and an @. It ends before the next address of a list, and before the end of a quoted text.
_NEXT: Final = r"(?!,[a-z][a-z0-9+.-]*://|[\"'],)"
# Matches user:password@ in an address. Azure's container@account is an address, not a credential.
_USERINFO: Final = re.compile(
    rf"(?P<scheme>\b(?!(?:abfs|wasb)s?:)[a-z][a-z0-9+.-]*://)(?P<user>[^:@/\s,]*)(?P<rest>:?(?:{_NEXT}\S){{0,500}})@",
    re.IGNORECASE,
)
_PARAMETER: Final = re.compile(
    rf"(?P<name>[?&;](?:\w{{0,40}}password|passwd|pwd|secret|token|api_?key|sig)=)(?:{_NEXT}[^&\s])*", re.IGNORECASE
)

SENSITIVE: Final = (
    "secret|password|token|access[.]?key|account[.]key|credential|[.]sas[.]|private[.]?key"
    r"|encryption[.-]key\b|client-provided[\w.-]*key"
)
"""Expression, of Python and Java, of the names of Spark's settings that hold secrets: Spark's own, and those of cloud stores."""
_CONF: Final = re.compile(SENSITIVE, re.IGNORECASE)

# Matches -Dname=value of a JVM's options, where quotes may enclose the value or the whole option.
_JVM_OPTION: Final = re.compile(
    rf"(?P<quote>[\"'])?(?P<name>-D(?=[^\s=]{{0,200}}?(?:{SENSITIVE}))[^\s=]+=)"
    r"(?(quote)(?:(?!(?P=quote)).)*|(?:\"[^\"]*\"|'[^']*'|\S)*)",
    re.IGNORECASE | re.DOTALL,
)


def _hide_user(match: re.Match[str]) -> str:
    user = f"{match['user']}:" if match["rest"].startswith(":") else ""
    return f"{match['scheme']}{user}{HIDDEN}@"


def masked(text: str) -> str:
    """Return the text without credentials in addresses and JVM options, printable for any bytes of the environment."""
    text = _JVM_OPTION.sub(lambda match: f"{match['quote'] or ''}{match['name']}{HIDDEN}", text)
    text = _PARAMETER.sub(rf"\g<name>{HIDDEN}", _USERINFO.sub(_hide_user, text))
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def may_be_userinfo(text: str) -> bool:
    """Return whether a text may hold credentials before an @ that ``masked`` does not find: no scheme, or a blank."""
    return "@" in masked(text).replace(f"{HIDDEN}@", "") and re.search(r"\b(abfs|wasb)s?://", text) is None


def without_credentials(endpoint: str) -> str:
    """Remove user and password from a URL: ``https://u:p@host`` -> ``https://host``.

    A container before an @ (``abfss://``) stays.
    """
    return re.sub(r"//[^/\s]*:[^/\s]*@", "//", endpoint)


def reported_state_path(location: str) -> str:
    """Return the state path as a service reports it, by which a command recognises the service of its configuration."""
    return without_credentials(location).rstrip("/")


def printable(text: str, kept: str = "") -> str:
    """Return the text with control characters escaped, those of ``kept`` excepted, since a terminal would execute them."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in kept else each.encode("unicode_escape").decode() for each in text
    )


def sensitive_conf(key: str) -> bool:
    """Return whether a Spark setting of this name is likely to hold a secret."""
    return _CONF.search(key) is not None


def shown(value: Any) -> str:
    """Return a value in one short line, secrets hidden."""
    if isinstance(value, SecretStr | SecretBytes):
        return HIDDEN
    text = masked(value) if isinstance(value, str) else masked(str(_revealed(value)))
    text = text.replace("\r", "\\r").replace("\n", "\\n")
    return text if len(text) <= SHOWN_LENGTH else f"{text[:SHOWN_LENGTH]}... ({len(text)} characters)"


def _revealed(value: Any) -> Any:
    if isinstance(value, dict):
        return ",".join(f"{key}={HIDDEN if sensitive_conf(str(key)) else shown(item)}" for key, item in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(shown(item) for item in value)
    if isinstance(value, bool):
        return str(value).lower()
    return value
