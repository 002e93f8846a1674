"""What is wrong with a configuration: every problem at once, each with its variable, YAML path, value and remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdf_replicator.settings.given import Path, variable_of
from cdf_replicator.settings.redact import masked, shown

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Problem:
    """``path``: where the value stands in YAML; ``given``: as text, secrets hidden, None if nothing was given."""

    variable: str
    path: str
    given: str | None
    expected: str

    @classmethod
    def at(cls, path: Path, given: str | None, expected: str, variable: str | None = None) -> Problem:
        """``variable``: if other than the one of ``path``, such as one spelled otherwise."""
        return cls(variable or variable_of(path), shown(".".join(path)), given, expected)

    def fit_to_show(self) -> Problem:
        """Without credentials in addresses, and printable whatever bytes the environment held."""
        given = None if self.given is None else masked(self.given)
        return Problem(masked(self.variable), masked(self.path), given, masked(self.expected))

    def __str__(self) -> str:
        where = f"  (YAML: {self.path})" if self.path else ""
        given = "nothing" if self.given is None else self.given
        return f"{self.variable}{where}\n    given:    {given}\n    expected: {self.expected}"


class ConfigurationError(Exception):
    """The configuration can't be used; carries every problem found."""

    exit_code = 78

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problem.fit_to_show() for problem in dict.fromkeys(problems))
        super().__init__(str(self))

    def __str__(self) -> str:
        count = len(self.problems)
        head = f"configuration: {count} problem{'' if count == 1 else 's'}"
        return "\n".join([head, *(f"  {problem}" for problem in self.problems)])
