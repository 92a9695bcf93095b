"""No option takes a number that is none: `nan` is in every range."""

import click
import pytest

from strata.cli.main import cli


def options(command, context, path=()):
    for parameter in command.params:
        if isinstance(parameter.type, (click.types.FloatParamType, click.FloatRange)):
            yield (*path, parameter.opts[0]), parameter
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            yield from options(inner, click.Context(inner, parent=context, info_name=name), (*path, name))


FOUND = dict(options(cli, click.Context(cli, info_name="strata")))


@pytest.mark.parametrize("path", FOUND, ids=" ".join)
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_number_is_finite(path, value):
    with pytest.raises(click.BadParameter):
        FOUND[path].type.convert(value, FOUND[path], None)
