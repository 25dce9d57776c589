"""Any feed as a Flink source: a thread reads it into a bounded queue, which a keyed function empties."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue

from pyflink.datastream import DataStream, KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import ValueStateDescriptor

from forebay.clock import Clock
from forebay.codec import encode, pack_state, unpack_state
from forebay.connectors.feeds.feed import Feed, Received
from forebay.connectors.formats import Format, with_added
from forebay.connectors.python_source import MAX_WAIT_S, CallLimit, IdleWait, calls
from forebay.errors import ForebayError, SettingError
from forebay.flink.jvm_task import is_cancelled, output_room
from forebay.flink.metric_names import LIMIT_REACHED, counter_of
from forebay.flink.task_end import close_with_task
from forebay.flink.types import BYTES, END_OF_TIME_MS, STATE
from forebay.processes import name_thread
from forebay.records import DeadLetter


@dataclass(frozen=True, slots=True)
class _End:
    error: BaseException | None


class FeedReader:
    """Reads a feed, at most `room` records ahead, on a daemon thread. For one thread."""

    def __init__(self, feed: Feed, cursor: str | None, *, room: int = 1000) -> None:
        self._feed = feed
        self._cursor = cursor
        self._room = room
        self._queue: SimpleQueue[Received | _End] = SimpleQueue()
        self._end: _End | None = None
        self._full = False
        self._closing = False
        self._loop = asyncio.new_event_loop()
        self._free = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name=f"feed {feed.name}", daemon=True)
        self._thread.start()

    def take(self, wait_s: float = 0.0) -> Received | None:
        """Block for at most `wait_s`. None: no record yet, or the feed ended. Raises the feed's error after
        its last record."""
        if self._end is None:
            try:
                got = self._queue.get(timeout=wait_s) if wait_s > 0 else self._queue.get_nowait()
            except Empty:
                return None
            if self._full and self._queue.qsize() <= self._room // 2:
                self._full = False
                self._wake(self._free.set)
            if isinstance(got, Received):
                return got
            self._end = got
        if self._end.error is not None:
            raise self._end.error
        return None

    @property
    def exhausted(self) -> bool:
        return self._end is not None and self._end.error is None

    def close(self, timeout_s: float = 10.0) -> None:
        self._closing = True
        self._wake(self._cancel)
        self._thread.join(timeout_s)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _wake(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            return  # The loop is closed: the feed has ended.

    def _run(self) -> None:
        name_thread("forebay-feed")
        asyncio.set_event_loop(self._loop)
        self._task = self._loop.create_task(self._read())
        error: BaseException | None = None
        try:
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            if not self._closing:
                error = ForebayError(f"{self._feed.name}: reading was cancelled by the feed itself")
        except BaseException as raised:
            error = raised
        finally:
            self._queue.put(_End(error))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    async def _read(self) -> None:
        async for received in self._feed.read(self._cursor):
            while self._queue.qsize() >= self._room:
                self._free.clear()
                self._full = True
                # A record taken before `_full` was set wakes no waiter.
                if self._queue.qsize() >= self._room:
                    await self._free.wait()
            self._queue.put(received)


@dataclass(frozen=True, slots=True)
class Polled:
    """`format` None: records are encoded already.

    At the `limit` or the feed's end, the counter `forebay.limit_reached` rises above 0, and the caller
    drains the job.
    """

    feed: Feed
    format: Format | None = field(default_factory=Format)
    room: int = 1000
    limit: int | None = None


def polled_source(env: StreamExecutionEnvironment, config: Polled) -> DataStream:
    """A restore resumes after the last record emitted. An error of the feed fails the job.

    If downstream is slow, a call emits one record, so that a checkpoint waits for one at most.
    """
    if config.room < 1:
        raise SettingError(f"room must be at least 1, found {config.room}")
    if config.limit is not None and config.limit < 1:
        raise SettingError(f"limit must be at least 1, found {config.limit}")
    beat = calls(env, name=f"calls of {config.feed.name}")
    return beat.process(Poll(config), BYTES).set_parallelism(1).name(config.feed.name)


class Poll(KeyedProcessFunction):
    def __init__(
        self, config: Polled, *, clock: Clock | None = None, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._config = config
        self._clock = clock
        self._sleep = sleep
        self._reader: FeedReader | None = None
        self._place: tuple[str | None, int] | None = None
        self._begun = False
        self._left = False

    def open(self, runtime_context: RuntimeContext) -> None:
        close_with_task(runtime_context, self.close)
        self._state = runtime_context.get_state(ValueStateDescriptor("cursor-and-count", STATE))
        self._limit_reached = counter_of(runtime_context, LIMIT_REACHED)
        self._call = CallLimit(output_room(runtime_context), clock=self._clock)
        self._idle = IdleWait(self._clock)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def process_element(self, value: object, ctx: KeyedProcessFunction.Context) -> Iterator[bytes]:
        if not self._begun:
            self._begun = True
            ctx.timer_service().register_event_time_timer(END_OF_TIME_MS)
        if self._left:
            self._sleep(MAX_WAIT_S)
        yield from self._hand_on()

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[bytes]:
        if self._config.limit is None:
            # The job is drained and the feed has no end to wait for. A failure of the feed is still raised.
            yield from self._hand_on()
            return
        while not self._left:
            if is_cancelled():
                raise ForebayError("the job was cancelled before the feed's limit was reached")
            yield from self._hand_on()

    def _hand_on(self) -> Iterator[bytes]:
        if self._left:
            return
        self._place = self._place or self._restored()
        cursor, count = self._place
        limit, taken, wait_s = self._config.limit, None, self._idle.wait_s()
        self._call.begin()
        while limit is None or count < limit:
            if self._reader is None:
                self._reader = FeedReader(self._config.feed, cursor, room=self._config.room)
            received = self._reader.take(wait_s)
            if received is None:
                break
            taken, count, wait_s = received, count + 1, 0.0
            yield self._encoded(received)
            if self._call.reached():
                break
        if taken is not None:
            self._idle.came()
            self._place = str(taken.cursor), count
            self._state.update(pack_state(*self._place))
        if (limit is not None and count >= limit) or (self._reader is not None and self._reader.exhausted):
            self._leave()

    def _restored(self) -> tuple[str | None, int]:
        found = self._state.value()
        if found is None:
            return None, 0
        cursor, count = unpack_state(found, "cursor of a feed")
        return cursor, count

    def _leave(self) -> None:
        self._left = True
        self._limit_reached.inc()
        self.close()

    def _encoded(self, received: Received) -> bytes:
        form = self._config.format
        if form is None:
            return received.raw
        record = replace(form.read(received.raw, received.position), headers=received.headers)
        if isinstance(record, DeadLetter):
            return encode(replace(record, cut_bytes=received.cut_bytes))
        return encode(replace(record, fields=with_added(record.fields, received.fields)))
