"""What commands answer with: one thing, whatever the form."""

import json

import yaml

from strata.cli.output import emit
from strata.control.policies import PolicyName
from strata.tables import rows


def test_yaml_says_what_json_says_and_repeats_what_stands_in_two_places(capsys):
    """`strata replay` answers with a name of an enumeration, `strata plan train` with one plan twice."""
    plan = {"domains": ("a", "b")}
    data = {"policy": PolicyName.NEVER, "plans": [plan], "knee": plan}
    emit(data, "json", ())
    as_json = capsys.readouterr().out
    emit(data, "yaml", ())
    as_yaml = capsys.readouterr().out
    assert yaml.safe_load(as_yaml) == json.loads(as_json)
    assert "&" not in as_yaml


def test_the_title_of_a_narrow_table_is_one_line(capsys):
    emit({}, "table", [rows(["a", "b"], [["1", "2"]], title="reward a step, gap to vi")])
    assert capsys.readouterr().out.splitlines()[0].rstrip() == "reward a step, gap to vi"
