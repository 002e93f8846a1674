"""Log one line per event to stderr, as JSON with ECS names or as coloured text, including lines of libraries.

Other modules use ``log = structlog.get_logger(__name__)`` and ``log.info("batch delivered", written=5)``.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Final, TextIO

import structlog

from cdf_replicator import __version__
from cdf_replicator.settings.redact import masked, printable

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from structlog.typing import EventDict, Processor

SERVICE: Final = "cdf-replicator"

# Libraries whose INFO lines repeat what the service logs itself.
QUIET: Final = ("py4j", "urllib3", "elastic_transport", "elasticsearch", "uvicorn.error", "asyncio")

# Libraries that log errors which the route reports: exceptions of foreachBatch with a traceback, each failed request.
SAID: Final = ("py4j.clientserver", "elastic_transport.node_pool", "elastic_transport.transport")

_ECS: Final = {"timestamp": "@timestamp", "level": "log.level", "event": "message", "logger": "log.logger"}


def configure(level: str, format_: str | None, stream: TextIO | None = None) -> None:
    """Send every log line of the process to ``stream``; call once at the start.

    Args:
        level: debug, info, warning or error.
        format_: json or text; None selects text on a terminal, else json.
        stream: stderr if None.

    """
    stream = stream or sys.stderr
    as_text = format_ == "text" or (format_ is None and stream.isatty())
    os.environ["JVM_LOG_LAYOUT"] = "text" if as_text else "json"  # conf/log4j2.properties reads it
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_shared(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_shared(),
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _without_credentials,
                *(_text(stream) if as_text else [_ecs, structlog.processors.JSONRenderer(default=str)]),
            ],
        ),
    )
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    root = logging.getLogger()
    for name in QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    for name in SAID:
        logging.getLogger(name).setLevel(root.level if root.level == logging.DEBUG else logging.CRITICAL)
    logging.captureWarnings(capture=True)


def configure_command(level: str, format_: str | None) -> None:
    """Configure the log of a command: text unless another format is set, also off a terminal, since an operator reads it."""
    configure(level, format_ or "text")


def _shared() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]


def _text(stream: TextIO) -> list[Processor]:
    colors = stream.isatty() and not os.environ.get("NO_COLOR")
    return [_printable, structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)]


def _without_credentials(_logger: object, _name: str, event: EventDict) -> EventDict:
    """Hide passwords in addresses, which any library's message may contain."""
    return {key: masked(value) if isinstance(value, str) else value for key, value in event.items()}


def _printable(_logger: object, _name: str, event: EventDict) -> EventDict:
    """Escape the control characters of a row's values."""
    return {key: printable(value, "\n\t") if isinstance(value, str) else value for key, value in event.items()}


def _ecs(_logger: object, _name: str, event: EventDict) -> EventDict:
    """Rename fields to the Elastic Common Schema; fields of this service keep their names."""
    info = event.pop("exc_info", None)
    result: MutableMapping[str, Any] = {_ECS.get(key, key): value for key, value in event.items()}
    result = {"@timestamp": result.pop("@timestamp"), "log.level": result.pop("log.level"), **result}
    result |= {"service.name": SERVICE, "service.version": __version__}
    error = _error(info)
    if error is not None:
        text = structlog.processors.format_exc_info
        result["error.type"] = f"{type(error).__module__}.{type(error).__qualname__}"
        result["error.message"] = masked(str(error))
        result["error.stack_trace"] = masked(str(text(None, "", {"exc_info": error})["exception"]))
    return result


def _error(info: object) -> BaseException | None:
    if isinstance(info, BaseException):
        return info
    if isinstance(info, tuple):
        return info[1] if isinstance(info[1], BaseException) else None
    return sys.exc_info()[1] if info else None
