import pytest

from strata.errors import UsageError
from strata.serving.worker.shape import Shape


def test_equal_models_and_only_these_have_equal_fingerprints():
    shapes = [Shape(), Shape(seed=1), Shape(num_layers=13), Shape(hidden_size=256), Shape(max_positions=1024)]
    assert len({shape.fingerprint for shape in shapes}) == len(shapes)
    assert Shape().fingerprint == Shape(12, 128).fingerprint


@pytest.mark.parametrize("fields", [{"num_layers": 0}, {"hidden_size": 130}, {"num_heads": 0}])
def test_a_model_that_cannot_be_is_refused(fields):
    with pytest.raises(UsageError):
        Shape(**fields)


def test_the_parts_of_a_model_weigh_what_it_weighs():
    shape = Shape().hosted
    assert shape.weight_bytes(0, 5) + shape.weight_bytes(5, 11) + shape.weight_bytes(11, 12) == shape.weight_bytes(
        0, 12
    )
