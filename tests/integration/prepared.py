"""Prepare a world once, and give a copy of it to each test of the process that needs it.

A bootstrap of two rows takes a second, and a copy of its files 30 ms. A copy is made under the path of the original, since tables,
checkpoints and claims name it. What a server holds is not copied: each test prepares a world that writes to one.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path  # noqa: TC003 - of a field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.conftest import World


@dataclass
class PreparedWorlds:
    """Keeps the files and the configuration of each world that a function prepared."""

    folder: Path
    kept: dict[object, tuple[Path, dict[str, str]]] = field(default_factory=dict)

    def put(self, world: World, prepare: Callable[..., None], *arguments: object) -> None:
        """Put a world into the state that a function makes of it; only the first call for a configuration calls the function."""
        given = frozenset((name, text.replace(str(world.folder), "")) for name, text in world.environ.items())
        key = prepare, arguments, given
        if key in self.kept:
            place, environ = self.kept[key]
            shutil.rmtree(place)
            shutil.copytree(_copy(place), place)
            world.move(place)
            world.environ = dict(environ)
        else:
            place = self.folder / f"{prepare.__name__} {len(self.kept)}"
            shutil.rmtree(place, ignore_errors=True)  # what a function that failed has left
            world.move(place)
            prepare(world, *arguments)
            shutil.copytree(place, _copy(place))
            self.kept[key] = place, dict(world.environ)
            world.move(place)
        world.forget()


def _copy(place: Path) -> Path:
    return place.with_name(f"{place.name} as prepared")
