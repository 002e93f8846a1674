"""Check the state path, the tables and the sinks for ``validate``, without changing them."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from cdf_replicator.commands.session import AnswerError, Answers
from cdf_replicator.queries.answer import Finding
from cdf_replicator.queries.query import Validate
from cdf_replicator.runtime import exit_codes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cdf_replicator.settings import Settings


def check_online(settings: Settings) -> list[Finding]:
    """Return every problem of the state path, Spark, the tables and the sinks, in this order."""
    return list(dict.fromkeys(_problems(settings)))


def _problems(settings: Settings) -> Iterator[Finding]:
    with closing(Answers(settings, settings.spark)) as answers:
        try:
            yield from answers.values(Validate(), _state_path(settings))
        except AnswerError as error:
            if error.exit_code != exit_codes.CONFIGURATION:
                raise
            yield Finding("spark", str(error), "")


def _state_path(settings: Settings) -> Iterator[Finding]:
    """Check the state path without writing to it; a running service has it open already."""
    from cdf_replicator.errors.exceptions import StateError
    from cdf_replicator.spark import SparkStartError
    from cdf_replicator.state.location import state_folder
    from cdf_replicator.state.store import StateStore

    try:
        StateStore.check(state_folder(settings))
    except StateError as error:
        yield Finding("state path", str(error), "")
    except SparkStartError as error:  # the object store is read by Spark
        raise AnswerError(str(error), exit_code=exit_codes.CONFIGURATION) from error
    except OSError as error:
        yield Finding(
            "state path", f"{settings.state_path} can't be used: {error.strerror}.", "Check that its store responds."
        )
