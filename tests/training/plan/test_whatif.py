from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.decision import Trust
from strata.errors import UsageError
from strata.fleet.changes import apply_settings
from strata.fleet.fleet import BandwidthCurve
from strata.training.plan.comparison import compare
from strata.training.plan.planner import plan_training
from strata.training.plan.whatif import JOB_KEYS
from strata.workload.job import SEARCHED, Limits, Objective, Recompute
from strata.workload.schema import load_job
from tests.support.builders import GBPS, card, domain, fleet, job, layers, link
from tests.support.laws import examples

THREE = fleet(domain("East"), domain("North-East", 4), domain("v1.2"), gbps=5.0, ms=30.0)
JOB = job(local_steps=(8,), limits=Limits(cost_usd_per_step=9.0))

SETTINGS = {
    "link.East-North-East.bandwidth=1Gbps": ["link.East-North-East.bandwidth: 5Gbps -> 1Gbps"],
    "link.East-v1.2.latency=5ms": ["link.East-v1.2.latency: 30ms -> 5ms"],
    "link.v1.2>East.rtt=20ms": ["link.v1.2>East.latency: 30ms -> 10ms"],
    "link.v1.2-East.price=$0.09/GB": ["link.East-v1.2.price: $0.02/GB -> $0.09/GB"],
    "link.East-v1.2=none": ["link.East-v1.2: 5Gbps, 30ms -> none"],
    "link.East>v1.2=none": ["link.East>v1.2: 5Gbps, 30ms -> none"],
    "domain.v1.2.num_gpus=16": ["domain.v1.2.num_gpus: 8 -> 16"],
    "domain.East.num_gpus=2": ["domain.East.num_gpus: 8 -> 2", "domain.East.gpus_per_node: 8 -> 2"],
    "domain.East.gpus_per_node=4": ["domain.East.gpus_per_node: 8 -> 4"],
    "domain.East.price=$3/h": ["domain.East.price: $2.00/h -> $3.00/h"],
    "domain.East.price=none": ["domain.East.price: $2.00/h -> none"],
    "domain.East.intra_bandwidth=100GB/s": ["domain.East.intra_bandwidth: 2.4Tbps -> 800Gbps"],
    "domain.East.network_bandwidth=800Gbps": ["domain.East.network_bandwidth: 400Gbps -> 800Gbps"],
    "domain.East.accelerator=H100-SXM5-80GB": ["domain.East.accelerator: card -> H100-SXM5-80GB"],
    "job.global_batch=128": ["job.global_batch: 64 sequences -> 128 sequences"],
    "job.global_batch=1Mi tokens": ["job.global_batch: 64 sequences -> 256 sequences"],
    "job.optimizer=sgd": ["job.optimizer: adamw -> sgd"],
    "job.expert_imbalance=1.2": ["job.expert_imbalance: 1 -> 1.2"],
    "job.schedules=gpipe,zb-h1": [f"job.schedules: {','.join(SEARCHED)} -> gpipe,zb-h1"],
    "job.zero=2,3": ["job.zero: 0,1 -> 2,3"],
    "job.recompute=auto": ["job.recompute: none -> auto"],
    "job.local_steps=8,32": ["job.local_steps: 8 -> 8,32"],
    "job.local_steps=none": ["job.local_steps: 8 -> none"],
    "job.compress=[none, int8]": ["job.compress: by 1 -> by 1,2"],
    "job.parallel.tensor=4": ["job.parallel.tensor: none -> 4"],
    "job.parallel.data=none": [],
    "job.parallel.stages=East:2,v1.2:6": ["job.parallel.stages: none -> East:2,v1.2:6"],
    "job.parallel.stages={East: 2}": ["job.parallel.stages: none -> East:2"],
    "job.minimize=cost": ["job.minimize: time -> cost"],
    "job.weights=1,0,0": ["job.weights: 0.4,0.3,0.3 -> 1,0,0"],
    "job.efficiency=0.5": ["job.efficiency: none -> 0.5"],
    "job.software.dispatcher=flex": ["job.software.dispatcher: alltoall -> flex"],
    "job.software.cuda_graphs=true": ["job.software.cuda_graphs: false -> true"],
    "job.software.gradients=fp32": ["job.software.gradients: model -> fp32"],
    "job.limits.cost=$5": ["job.limits.cost: $9.00 -> $5.00"],
    "job.limits.cost=none": ["job.limits.cost: $9.00 -> none"],
    "job.limits.tokens_per_s=2k": ["job.limits.tokens_per_s: none -> 2,000"],
    "job.limits.domains=East,v1.2": ["job.limits.domains: none -> East,v1.2"],
    "job.limits.memory_headroom=10%": ["job.limits.memory_headroom: 8% -> 10%"],
}

WHAT_IT_IS = [
    "link.East-v1.2.bandwidth=5Gbps",
    "link.East>v1.2.rtt=60ms",
    "link.East-v1.2.price=$0.02/GB",
    "domain.East.num_gpus=8",
    "domain.East.accelerator=card",
    "domain.East.price=$2/h",
    "job.global_batch=64",
    "job.recompute=none",
    "job.local_steps=8",
    "job.compress=none",
    "job.minimize=time",
    "job.limits.cost=$9",
    "job.limits.domains=none",
]


def apply(hardware, work, settings):
    return apply_settings(hardware, work, settings, keys=JOB_KEYS)


def same_job(a, b):
    return all(getattr(a, item.name) == getattr(b, item.name) for item in fields(a) if item.name != "layers")


def fault(*texts, of=THREE, job=JOB):
    with pytest.raises(UsageError) as caught:
        apply(of, job, texts)
    return str(caught.value)


def plan(hardware, work, rank=8):
    return plan_training(hardware, work, clock=lambda: 0.0, rank=rank)


@pytest.mark.parametrize(("setting", "changes"), SETTINGS.items(), ids=SETTINGS)
def test_a_setting_changes_what_it_names(setting, changes):
    assert [str(change) for change in apply(THREE, JOB, [setting])[2]] == changes


@pytest.mark.parametrize("setting", WHAT_IT_IS)
def test_setting_a_value_to_what_it_is_changes_nothing(setting):
    changed_fleet, changed_job, changes = apply(THREE, JOB, [setting])
    assert changes == []
    assert changed_fleet == THREE
    assert same_job(changed_job, JOB)


@given(st.lists(st.sampled_from(list(SETTINGS)), unique=True, max_size=6))
def test_applying_twice_is_applying_once(chosen):
    one_each = list({text.split("=")[0].replace("rtt", "latency"): text for text in chosen}.values())
    try:
        once = apply(THREE, JOB, one_each)
    except UsageError:  # a link taken away and changed, say; what is refused is tested by itself
        return
    twice = apply(*once[:2], one_each)
    assert twice[2] == []
    assert twice[0] == once[0]
    assert same_job(twice[1], once[1])


def test_a_domain_takes_its_links_with_it():
    changed, _, changes = apply(THREE, JOB, ["domain.v1.2=none"])
    assert [one.name for one in changed.domains] == ["East", "North-East"]
    assert set(changed.links) == {("East", "North-East"), ("North-East", "East")}
    assert [str(change) for change in changes] == ["domain.v1.2: 8 card -> none"]


def test_a_link_is_added_by_its_bandwidth_and_latency():
    line = fleet(*THREE.domains, links=link("East", "v1.2", 5, 30))
    values = ["link.East-North-East.bandwidth=2Gbps", "link.East-North-East.rtt=10ms"]
    changed, _, changes = apply(line, JOB, values)
    assert [str(change) for change in changes] == ["link.East-North-East: none -> 2Gbps, 5ms"]
    assert changed.link("North-East", "East").bandwidth_bytes_per_s == 2 * GBPS
    assert "set its bandwidth and its latency to add it" in fault(values[0], of=line)


def test_both_directions_are_those_there_are():
    one_way = fleet(*THREE.domains[:2], links=link("East", "North-East", 5, 30)[:1])
    changed, _, changes = apply(one_way, JOB, ["link.East-North-East.bandwidth=1Gbps"])
    assert [str(change) for change in changes] == ["link.East>North-East.bandwidth: 5Gbps -> 1Gbps"]
    assert list(changed.links) == [("East", "North-East")]


def test_a_changed_link_is_assumed_and_its_curve_keeps_its_shape():
    curved = [replace(one, curve=BandwidthCurve((-0.01, 0.1, 0.6))) for one in link("East", "v1.2", 5, 30)]
    changed, _, _ = apply(fleet(*THREE.domains, links=curved), JOB, ["link.East-v1.2.bandwidth=1Gbps"])
    new, old = changed.link("East", "v1.2"), curved[0]
    assert (new.trust, old.trust) == (Trust.ASSUMED, Trust.ANALYTIC)
    assert new.serialisation_s(64e6) == pytest.approx(5 * old.serialisation_s(64e6))


def test_an_interconnect_that_came_with_the_accelerator_goes_with_it():
    known = replace(card("known"), interconnect_bytes_per_s=600e9)
    mixed = fleet(domain("A", accelerator=known), domain("B"))
    changed, _, _ = apply(mixed, JOB, ["domain.A.accelerator=H100-SXM5-80GB"])
    assert changed.domain("A").intra_bandwidth_bytes_per_s == 450e9
    assert "the interconnect of card is not known: set intra_bandwidth too" in fault(
        "domain.A.accelerator=card", of=mixed
    )
    both = ["domain.A.accelerator=card", "domain.A.intra_bandwidth=64GB/s"]
    assert apply(mixed, JOB, both)[0].domain("A").accelerator == card()
    alone = ["domain.A.accelerator=card", "domain.A.gpus_per_node=1"]  # nothing in a node to be joined
    assert apply(mixed, JOB, alone)[0].domain("A").intra_bandwidth_bytes_per_s == 50e9


def test_two_readings_of_a_name_are_told_apart_by_their_links():
    names = [domain(name) for name in ("a", "b-c", "a-b", "c")]
    linked = fleet(*names, links=link("a-b", "c", 5, 30))
    assert str(apply(linked, JOB, ["link.a-b-c.bandwidth=1Gbps"])[2][0]).startswith("link.a-b-c.bandwidth: 5Gbps")
    assert "ambiguous: write a>b-c or a-b>c" in fault("link.a-b-c.bandwidth=1Gbps", of=fleet(*names))
    assert apply(fleet(*names), JOB, ["link.a-b>c.bandwidth=1Gbps"])[2]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("link.East-v1.2", "has no value; write path=value, for example link.East-North-East.bandwidth=1Gbps"),
        ("link.East-v1.2.bandwidth=", "has no value"),
        ("links.East-v1.2.bandwidth=1Gbps", "starts with link, domain or job (did you mean 'link'?)"),
        ("link.East-v1.2.bandwith=1Gbps", "unknown key 'bandwith' (did you mean 'bandwidth'?)"),
        ("link.East-v1.2.colour=red", "unknown key 'colour' (known: bandwidth, latency, rtt, price)"),
        ("link.Eats-v1.2.bandwidth=1Gbps", "no two domains are named 'Eats-v1.2' (did you mean 'East-v1.2'?)"),
        ("link.East>East.bandwidth=1Gbps", "no two domains are named 'East>East'"),
        ("link.East-v1.2=1Gbps", "only `none` can stand here; or set one of bandwidth,"),
        ("link.East-v1.2.bandwidth=0Gbps", "should be greater than 0"),
        ("link.East-v1.2.bandwidth=5", "5 has no unit; write 400Gbps"),
        ("link.East-v1.2.bandwidth=none", "cannot read 'none'"),
        ("link.East-v1.2.latency=-1ms", "should be greater than or equal to 0"),
        ("link.East-v1.2.price=-$1/GB", "should be greater than or equal to 0"),
        ("domain.Esat.num_gpus=8", "no domain is named 'Esat' (did you mean 'East'?)"),
        ("domain.v1.2.gpus=8", "unknown key 'gpus' (did you mean 'num_gpus'?)"),
        ("domain.East.num_gpus=0", "has no accelerators"),
        ("domain.East.num_gpus=-8", "must be a positive number of accelerators"),
        ("domain.East.num_gpus=many", "should be a valid integer"),
        ("domain.East.gpus_per_node=16", "a node of 16 is more than num_gpus (8)"),
        ("domain.East.accelerator=A9000X", "no accelerator 'A9000X' in the catalogue"),
        ("job.model=gpt2", "'model' is what the layer table was computed from"),
        ("job.minimise=time", "unknown key 'minimise' (did you mean 'minimize'?)"),
        ("job.minimize=speed", "should be 'time', 'cost', 'reward', 'reward-egress' or 'tchebycheff'"),
        ("job.sequence=8192", "the layers were measured at one sequence length"),
        ("job.global_batch=5000 tokens", "not a whole number of sequences of 4096 tokens"),
        ("job.global_batch=0", "0 is not a whole number from 1"),
        ("job.weights=1,2", "write three numbers"),
        ("job.weights=0,0,0", "all weights are zero"),
        ("job.efficiency=1.5", "should be less than or equal to 1"),
        ("job.compress=int2", "should be 'none', 'int8' or 'int4'"),
        ("job.limits.cost=$0", "should be greater than 0"),
        ("job.limits.domains=East,Weast", "no domain is named 'Weast' (did you mean 'East'?)"),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_wrong(setting, said):
    message = fault(setting)
    assert message.startswith(f"{setting}: ")
    assert said in message


def test_sequence_and_precision_are_what_the_file_says_then(tmp_path):
    head = "apiVersion: strata/v1alpha1\nkind: TrainingJob\nname: j\nmodel: gpt2\n"
    jobs = []
    for rest in ("sequence: 512", "sequence: 1024, precision: fp8"):
        train = f"train: {{global_batch: 1Mi tokens, sync: {{compress: int8}}, {rest}}}\n"
        (tmp_path / "job.yaml").write_text(head + train)
        jobs.append(load_job(tmp_path / "job.yaml"))
    settings = ["job.sequence=1024", "job.precision=fp8", "job.global_batch=1Mi tokens"]
    _, changed, _ = apply(fleet(domain("East")), jobs[0], settings)
    assert repr(changed) == repr(jobs[1])
    with pytest.raises(UsageError, match="learned positions for only 1024 tokens"):
        apply(fleet(domain("East")), jobs[0], ["job.sequence=2048"])


def test_all_wrong_settings_are_named_at_once():
    lines = fault("job.efficiency=2", "domain.East.gpus_per_node=9", "domain.East.accelerator=A9000X").splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "job.efficiency=2",
        "domain.East.gpus_per_node=9, domain.East.accelerator=A9000X",
    ]


def test_without_links_an_example_is_of_a_domain():
    assert fault("job.sequence", of=fleet(domain("East"))).endswith("for example domain.East.num_gpus=8")


def test_settings_that_contradict_each_other_are_refused():
    assert "sets again what link.East-v1.2.rtt=5ms sets" in fault(
        "link.East-v1.2.rtt=5ms", "link.v1.2>East.latency=9ms"
    )
    gone = "domain.East=none takes that away"
    texts = fault("domain.East=none", "domain.East.num_gpus=9", "link.East-v1.2=none").splitlines()
    assert texts == [f"domain.East.num_gpus=9: {gone}", f"link.East-v1.2=none: {gone}"]
    assert fault(*(f"domain.{one.name}=none" for one in THREE.domains)) == "these settings leave no domain"


@examples(12)
@given(st.integers(1, 40), st.integers(1, 100), st.integers(1, 60))
def test_less_bandwidth_never_makes_the_new_step_faster(gbps, percent, ms):
    pair = fleet(domain("A", 2), domain("B", 2), gbps=gbps, ms=ms)
    work = job(layers(4), batch=8)
    less, _, _ = apply(pair, work, [f"link.A-B.bandwidth={gbps * percent / 100}Gbps"])
    old, new = (plan(one, work, rank=0).best.report.step_time_s for one in (pair, less))
    assert new >= old * (1 - 2e-4)  # the share below which the planner does not search on


def compared(settings, *, work=None, hardware=None):
    hardware, work = (
        hardware or fleet(domain("A", 4), domain("B", 4), gbps=20, ms=5),
        work or job(layers(6), batch=32),
    )
    new_fleet, new_job, _ = apply(hardware, work, settings)
    return compare(plan(hardware, work), plan(new_fleet, new_job))


def test_nothing_moves_where_nothing_changes():
    found = compared(["link.A-B.bandwidth=20Gbps"])
    assert found.same_plan
    keys = ("step_time_s_ratio", "tokens_per_s_ratio", "utilization_difference")
    assert [found.figures[key] for key in keys] == [1.0, 1.0, 0.0]
    assert (found.domains_added, found.domains_removed, found.appeared, found.gone) == ([], [], (), ())
    assert "stays as it is" in found.text
    assert "as before" in found.text


def test_a_domain_behind_a_slow_link_leaves_and_the_link_is_named():
    found = compared(["link.A-B.bandwidth=10Mbps", "link.A-B.latency=2s"])
    assert len(found.domains_removed) == 1
    assert found.figures["kind"]["new"] == "single"
    assert found.figures["step_time_s_ratio"] > 1 > found.figures["tokens_per_s_ratio"]
    assert found.figures["step_time_s_ratio"] == pytest.approx(1 / found.figures["tokens_per_s_ratio"])
    assert found.figures["wan_bytes_per_step_difference"] < 0
    assert "single-domain-best" in [reason.token for reason in found.appeared]
    assert f"{found.domains_removed[0]} leaves: a step takes " in found.text
    assert "link " in found.text
    assert "(10Mbps, 2s)" in found.text


def test_a_domain_that_gets_a_fast_link_joins():
    slow = fleet(domain("A", 4), domain("B", 4), gbps=0.01, ms=2000)
    found = compared(["link.A-B.bandwidth=20Gbps", "link.A-B.latency=5ms"], hardware=slow)
    assert len(found.domains_added) == 1
    assert found.figures["step_time_s_ratio"] < 1
    assert f"{found.domains_added[0]} joins: a step takes " in found.text


def test_the_shares_of_the_domains_add_up():
    found = compared(["domain.A.num_gpus=8"])
    for side in (0, 1):
        works = [both[side] for both in found.domains.values() if both[side] is not None]
        assert sum(work.share for work in works) == pytest.approx(1)


@pytest.mark.long("searches the relaxations of a job")
def test_a_side_without_a_plan_has_its_reasons():
    found = compared(["job.limits.tokens_per_s=1T"])
    assert found.figures["kind"]["new"] is None
    assert found.figures["step_time_s_ratio"] is None
    assert [reason.token for reason in found.appeared] == ["needs-limit"]
    assert found.text.startswith("No plan fits any more: would be feasible with tokens_per_s relaxed")
    floor = job(layers(6), batch=32, limits=Limits(tokens_per_s=1e12))
    assert compared(["job.limits.tokens_per_s=none"], work=floor).text.startswith("A plan fits now: ")
    neither = compared([], work=floor)
    assert neither.text.startswith("No plan fits, as before: ")
    assert not neither.same_plan


def test_what_was_so_before_is_not_why_no_plan_fits_any_more():
    three = fleet(domain("A", 4), domain("B", 4), domain("C", 4))
    only = job(layers(6), batch=32, limits=Limits(domains=frozenset({"A", "B"})))
    found = compared(["domain.A=none", "domain.B=none"], hardware=three, work=only)
    assert found.text == "No plan fits any more."


def test_money_is_said_where_money_is_the_goal():
    found = compared(["job.minimize=cost"])
    assert "a million tokens cost $" in found.text
    assert found.figures["cost_usd_per_mtoken_ratio"] <= 1


def test_a_job_keeps_what_is_not_set():
    _, new, _ = apply(THREE, JOB, ["job.limits.memory_headroom=0.2", "job.minimize=reward", "job.recompute=full"])
    assert new.limits == replace(JOB.limits, memory_headroom=0.2)
    assert (new.objective, new.recompute, new.layers) == (Objective.REWARD, (Recompute.FULL,), JOB.layers)
