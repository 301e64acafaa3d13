import numpy as np

from stages.rollout.draws import uniforms


def test_the_draws_of_a_position_depend_on_the_seed_alone() -> None:
    few, many = uniforms(8, 4), uniforms(8, 9)
    assert np.array_equal(few, many[:4])
    assert not np.array_equal(few, uniforms(7, 4))
    assert few.dtype == np.float64 and few.shape == (4, 3)
