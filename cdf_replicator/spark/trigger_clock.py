"""Replace the clock by which the trigger of a query waits, so that an idle query can sleep.

Spark triggers a query at a fixed interval, and each trigger lists the log of its table. No public setting pauses the triggers of a
query that has read everything. Their executor waits by an ``org.apache.spark.util.Clock``, in a private field. Janino, by which
Spark compiles its plans, compiles a clock that can sleep and be woken. A wait is measured from its begin, since the clock of the
machine may go back meanwhile.
"""

from __future__ import annotations

import time
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_NUMBERS: Final = count()
"""Two routes at once may compile a class each. Their names differ, since py4j finds a method by the name of its class only."""
_SOURCE: Final = """
public final class %s implements org.apache.spark.util.Clock {
  private long until = System.nanoTime();

  public long getTimeMillis() { return System.currentTimeMillis(); }

  public long nanoTime() { return System.nanoTime(); }

  public synchronized long waitTillTime(long target) {
    long due = System.nanoTime() + (target - getTimeMillis()) * 1000000L;
    long left = left(due);
    while (left > 0) {
      try {
        wait(left / 1000000L + 1);
      } catch (InterruptedException e) {  // Spark takes this pair for the end of a stopped query
        throw new java.io.UncheckedIOException(new java.io.InterruptedIOException());
      }
      left = left(due);
    }
    return getTimeMillis();
  }

  private long left(long due) {
    long now = System.nanoTime();
    return Math.max(due - now, until - now);
  }

  public synchronized void sleep(long milliseconds) { until = System.nanoTime() + milliseconds * 1000000L; }

  public synchronized void wake() { until = System.nanoTime(); notifyAll(); }
}
"""


class TriggerClock:
    """The clock of one query."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self._until = 0.0

    @property
    def sleeps(self) -> bool:
        return time.monotonic() < self._until

    def sleep(self, seconds: float) -> None:
        """Have the next triggers wait for ``wake``, and no longer than the given time."""
        self._until = time.monotonic() + seconds
        self._clock.sleep(round(seconds * 1000))

    def wake(self) -> None:
        self._clock.wake()
        self._until = 0.0


class TriggerClocks:
    """Makes the clocks of a session's queries."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._class: Any = None

    def install(self, query: StreamingQuery) -> TriggerClock | None:
        """Give a query that has had a trigger a clock that can sleep; return None if this Spark or Java does not allow it."""
        try:
            executor = _value(query._jsq.streamingQuery(), "triggerExecutor")
            field = None if executor is None else _field(executor, "clock")
            if field is None:
                return None
            self._class = self._class or _compiled(self._spark)
            clock = self._class.newInstance()
            field.set(executor, clock)
        except Py4JJavaError:  # the query polls its table as often as without this clock
            return None
        return TriggerClock(clock)


def _compiled(spark: SparkSession) -> Any:
    """Return a class of clocks."""
    name = f"SleepingClock{next(_NUMBERS)}"
    compiler = getattr(spark._jvm, "org.codehaus.janino.SimpleCompiler")()
    compiler.cook(_SOURCE % name)
    return compiler.getClassLoader().loadClass(name)


def _value(holder: Any, name: str) -> Any:
    field = _field(holder, name)
    return None if field is None else field.get(holder)


def _field(holder: Any, name: str) -> Any:
    """Return an accessible field of an object's class or of a base class; None without such a field."""
    kind = holder.getClass()
    while kind is not None:
        for field in kind.getDeclaredFields():
            if field.getName() == name:
                field.setAccessible(True)
                return field
        kind = kind.getSuperclass()
    return None
