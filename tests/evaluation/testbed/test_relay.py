from strata.evaluation.testbed.relay import Delayed


def test_a_packet_is_due_after_the_delay_and_not_before():
    queue = Delayed(0.010)
    queue.add(1.0, 5, b"one")
    assert queue.due(1.009) == []
    assert queue.wait_s(1.004) == 1.010 - 1.004
    assert queue.due(1.010) == [(5, b"one")]
    assert queue.due(2.0) == []


def test_packets_keep_their_order_when_the_delay_gets_shorter():
    queue = Delayed(0.010)
    queue.add(1.0, 5, b"one")
    queue.delay_s = 0.0
    queue.add(1.001, 5, b"two")
    assert queue.due(1.005) == []
    assert queue.due(1.010) == [(5, b"one"), (5, b"two")]


def test_an_empty_queue_waits_for_nothing():
    assert Delayed().wait_s(1.0) is None
