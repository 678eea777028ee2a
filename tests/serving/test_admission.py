"""The slots of requests: in the order of arrival, bounded, and never lost."""

import asyncio

import pytest

pytest.importorskip("twml_ops.serving", reason="needs the extra `serve`")

from hypothesis import given
from hypothesis import strategies as st

from twml_ops.serving.errors import DeadlineExceeded, Overloaded
from twml_ops.serving.service import Admission

LONG = 1000.0


async def turns():
    """Lets all tasks run until they wait."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_waiting_requests_get_slots_in_the_order_of_arrival():
    async def run():
        admission, order = Admission(1, 3), []

        async def request(i):
            await admission.enter(LONG)
            order.append(i)

        await admission.enter(LONG)
        tasks = [asyncio.create_task(request(i)) for i in range(3)]
        await turns()
        assert order == []
        for _ in range(3):
            admission.leave()
            await turns()
        assert order == [0, 1, 2]
        await asyncio.gather(*tasks)

    asyncio.run(run())


def test_a_request_beyond_the_queue_is_refused_at_once():
    async def run():
        admission = Admission(1, 1)
        await admission.enter(LONG)
        waiting = asyncio.create_task(admission.enter(LONG))
        await turns()
        with pytest.raises(Overloaded, match="1 requests wait already"):
            await admission.enter(LONG)
        admission.leave()
        await waiting

    asyncio.run(run())


def test_a_request_that_waits_too_long_is_refused_and_leaves_the_queue():
    async def run():
        admission = Admission(1, 1)
        await admission.enter(LONG)
        with pytest.raises(DeadlineExceeded):
            await admission.enter(0.001)
        waiting = asyncio.create_task(admission.enter(LONG))  # the queue has room again
        await turns()
        admission.leave()
        await waiting

    asyncio.run(run())


@given(st.lists(st.sampled_from(["enter", "leave", "cancel", "cancel and leave"]), max_size=30))
def test_no_slot_is_lost_or_given_twice(actions):
    async def run():
        admission, slots, inside, tasks = Admission(2, 4), 2, [], []

        async def request():
            await admission.enter(LONG)
            inside.append(asyncio.current_task())

        for action in actions:
            waiting = [t for t in tasks if not t.done()]
            if action == "enter":
                tasks.append(asyncio.create_task(request()))
            if "cancel" in action and waiting:
                waiting[0].cancel()
            if "leave" in action and inside:
                inside.pop()
                admission.leave()
                if "cancel" in action and waiting:  # the slot may be on its way to a cancelled task
                    waiting[-1].cancel()
            else:
                await turns()
            assert len(inside) <= slots
        await turns()
        assert len(inside) == min(slots, len(inside) + sum(not t.done() for t in tasks))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _ in inside:
            admission.leave()
        for _ in range(slots):
            await admission.enter(0.001)  # all slots are free

    asyncio.run(run())
