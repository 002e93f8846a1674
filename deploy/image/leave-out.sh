#!/bin/sh
# Remove what a list names from a folder. A pattern without a match fails the build: the list must follow new versions.
#
#   leave-out.sh LIST FOLDER
set -eu

list=$(realpath "$1")
cd "$2"
while read -r pattern || [ -n "$pattern" ]; do
  case $pattern in '' | '#'*) continue ;; esac
  # The shell expands the pattern here, since a list holds one per line.
  # shellcheck disable=SC2086
  set -- $pattern
  if [ ! -e "$1" ]; then
    echo "leave-out.sh: $list: $pattern matches nothing in $PWD" >&2
    exit 1
  fi
  rm -r -- "$@"
done < "$list"
