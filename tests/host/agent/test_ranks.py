"""Ranks across hosts: who waits beyond the others, which host and pool, beside whom, and what it costs."""

from __future__ import annotations

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from click.testing import CliRunner

from strata.cli.main import cli
from strata.host.agent.ranks import AgentPage, job_delays, rank_delays, without_delays

DELAY = "strata_host_run_queue_delay_seconds_total"


def page(host, at_s, *delays, steps=None, busiest=()):
    """A page of (job, rank, pool, seconds)."""
    lines = [
        f'{DELAY}{{job_name="{job}",pool="{pool}",rank="{rank}"}} {value}' for job, rank, pool, value in delays
    ]
    lines += [f'strata_host_step{{job_name="a",rank="{rank}"}} {step}' for rank, step in (steps or {}).items()]
    lines += [
        f'strata_host_busiest_cpus{{job_name="{job}",pid="{pid}",process="{name}"}} {cpus}'
        for job, pid, name, cpus in busiest
    ]
    return AgentPage.of(host, "".join(f"{line}\n" for line in lines), at_s=at_s)


def test_the_rank_that_waits_beyond_the_median_is_named_with_its_host_its_threads_and_who_is_beside_it():
    before, after = [], []
    for rank in range(4):
        host, waited = f"node{rank}", 3.0 if rank == 2 else 0.2
        busiest = [("a", 1, "python", 3.0), ("b", 77, "make", 1.5), ("", 8, "sshd", 0.1)]
        before.append(page(host, 0.0, ("a", rank, "kernel-launch", 5.0), steps={rank: 100}))
        after.append(
            page(host, 10.0, ("a", rank, "kernel-launch", 5.0 + waited), ("a", rank, "loading", 900.0),
                 steps={rank: 120}, busiest=busiest)
        )  # fmt: skip
    (delay,) = job_delays(before, after)
    assert (delay.worst.host, delay.worst.rank, delay.worst.pool) == ("node2", "2", "kernel-launch")
    assert delay.beyond_s == pytest.approx(2.8)
    assert delay.device_s == pytest.approx(4 * 2.8)
    assert (delay.worst.step, delay.worst.steps) == (120, 20)
    assert delay.culprit == "make, process 77 of b, on 1.5 CPUs"


def test_without_an_accelerator_threads_of_no_pool_count_beside_those_that_watch():
    pools = [("a", 0, "comms-monitor", 1.0), ("a", 0, "none", 4.0), ("a", 0, "loading", 9.0)]
    launch = ("a", 0, "kernel-launch", 0.5)
    for delays, waited_s, pool in ((pools, 5.0, "none"), ([*pools, launch], 1.5, "comms-monitor")):
        (delay,) = rank_delays(page("x", 0.0), page("x", 10.0, *delays))
        assert (delay.waited_s, delay.pool) == (waited_s, pool)


def test_hosts_whose_agents_looked_at_different_moments_are_compared_over_the_same_time():
    """Both wait half of the time; one agent had taken six looks between the pages, the other five."""
    before, after = [], []
    for host, looks in (("a", 5), ("b", 6)):
        for pages, at_s, looked_s, waited_s in ((before, 0.0, 0.0, 1.0), (after, 10.0, 2.0 * looks, 1.0 + looks)):
            text = f'{DELAY}{{job_name="j",pool="none",rank="{host}"}} {waited_s}\n'
            pages.append(AgentPage.of(host, f"strata_host_looked_seconds {looked_s}\n{text}", at_s=at_s))
    (delay,) = job_delays(before, after)
    assert (delay.worst.waited_s, delay.beyond_s) == (5.0, 0.0)


def test_the_thread_that_waits_most_is_named():
    text = 'strata_host_longest_wait_ratio{job_name="a",rank="1",tid="7",thread="python"} 0.9\n'
    text += f'{DELAY}{{job_name="a",pool="none",rank="1"}} 3\n{DELAY}{{job_name="a",pool="none",rank="2"}} 1\n'
    first, second = rank_delays(page("x", 0.0), AgentPage.of("x", text, at_s=1.0))
    assert (first.thread, second.thread) == ("python (7)", "")


def test_ranks_that_wait_alike_cost_nothing():
    before = [page(host, 0.0, ("a", host, "none", 1.0)) for host in "xyz"]
    after = [page(host, 5.0, ("a", host, "none", 2.0)) for host in "xyz"]
    (delay,) = job_delays(before, after)
    assert (delay.beyond_s, delay.device_s, delay.culprit) == (0.0, 0.0, "")


def test_an_agent_that_was_started_anew_counts_from_there():
    (delay,) = rank_delays(page("x", 0.0, ("a", 0, "none", 90.0)), page("x", 1.0, ("a", 0, "none", 0.5)))
    assert delay.waited_s == 0.5


def test_agents_of_other_versions_are_read_as_far_as_they_go():
    newer = f'{DELAY}{{job_name="a",pool="none",rank="0",cell="7"}} 2\nstrata_host_of_tomorrow{{x="1"}} 3\n'
    older = "strata_host_threads 4\n"
    pages = [AgentPage.of("new", newer, at_s=1.0), AgentPage.of("old", older, at_s=1.0)]
    assert without_delays(pages) == ("old",)
    (delay,) = job_delays([AgentPage.of("new", "", at_s=0.0)], pages)
    assert (delay.worst.host, delay.worst.waited_s, delay.worst.steps) == ("new", 2.0, None)


def test_what_is_of_no_job_is_no_rank():
    assert rank_delays(page("x", 0.0), page("x", 1.0, ("", "", "none", 9.0))) == ()


@contextmanager
def serving(*texts):
    """An agent that answers these, one after the other."""
    left = list(texts)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = (left.pop(0) if len(left) > 1 else left[0]).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def text(rank, value):
    return f'{DELAY}{{job_name="a",pool="kernel-launch",rank="{rank}"}} {value}\n'


def test_the_command_asks_all_agents_twice_and_says_who_is_left_out():
    with (
        serving(text(0, 1.0), text(0, 1.01)) as quiet,
        serving(text(1, 1.0), text(1, 1.09)) as slow,
        serving("not a page {") as broken,
    ):
        agents = [f"q={quiet}", f"s={slow}", f"b={broken}"]
        ran = CliRunner().invoke(cli, ["host", "ranks", *agents, "--seconds", "0.1", "-o", "json"])
    data = json.loads(ran.stdout)
    assert data["left_out"] == ["b"]
    (job,) = data["jobs"]
    assert (job["host"], job["rank"], job["num_ranks"]) == ("s", "1", 2)
    assert job["beyond_median_s"] == pytest.approx(0.08)


def test_no_agent_at_all_is_told():
    failed = CliRunner().invoke(cli, ["host", "ranks", "http://127.0.0.1:9", "--seconds", "0.1"])
    assert "no agent answers" in str(failed.exception)
