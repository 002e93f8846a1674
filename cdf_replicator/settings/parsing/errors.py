"""Problems of a configuration, all reported at once, each with variable, YAML path, value and remedy."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdf_replicator.settings.parsing.raw import Path, variable_of
from cdf_replicator.settings.redact import masked, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One problem of the configuration.

    Args:
        variable: the environment variable to change.
        path: path of the value in YAML.
        given: the value as text, secrets hidden; None if none was given.
        expected: text that describes a valid value.

    """

    variable: str
    path: str
    given: str | None
    expected: str

    @classmethod
    def at(cls, path: Path, given: str | None, expected: str, variable: str | None = None) -> ConfigProblem:
        """Return a problem of the value at ``path``; ``variable`` overrides the variable derived from the path."""
        return cls(variable or variable_of(path), shown(".".join(path)), given, expected)

    def fit_to_show(self) -> ConfigProblem:
        """Return the problem as printable text without credentials in addresses."""
        given = None if self.given is None else masked(self.given)
        return ConfigProblem(masked(self.variable), masked(self.path), given, masked(self.expected))

    def __str__(self) -> str:
        where = f"  (YAML: {self.path})" if self.path else ""
        given = "nothing" if self.given is None else self.given
        return f"{self.variable}{where}\n    given:    {given}\n    expected: {self.expected.removeprefix('expected ')}"


class Problems(list[ConfigProblem]):
    """Every problem found so far, since one start reports all of them."""

    def add(self, path: Path, given: str | None, expected: str, variable: str | None = None) -> None:
        """Add a problem of the value at ``path``, see ``ConfigProblem.at``."""
        self.append(ConfigProblem.at(path, given, expected, variable))


class ConfigurationError(Exception):
    """The configuration can't be used; the exception carries every problem found."""

    exit_code = 78

    def __init__(self, problems: Sequence[ConfigProblem]) -> None:
        self.problems = tuple(problem.fit_to_show() for problem in dict.fromkeys(problems))
        super().__init__(str(self))

    def __str__(self) -> str:
        count = len(self.problems)
        head = f"configuration: {count} problem{'' if count == 1 else 's'}"
        return "\n".join([head, *(f"  {problem}" for problem in self.problems)])


def meant(name: str, known: Iterable[str]) -> str:
    """Return the known name that is nearest to an unknown one, or all known names."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names) or 'none'}"
