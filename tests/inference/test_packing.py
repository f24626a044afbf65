"""Positions as one vector and back."""

import jax
import jax.numpy as jnp
import numpy as np

from ppl_bnn.inference import packing as packing_module
from ppl_bnn.inference.estimators import Anchor
from ppl_bnn.inference.packing import ALL, Packing

POSITION = {
    "b": jnp.arange(6.0).reshape(2, 3),
    "a": jnp.float32(7.0),
    "c": jnp.asarray([8.0, 9.0]),
}


def test_there_and_back():
    packing = Packing(POSITION)
    (packed,) = jax.tree.leaves(packing.pack(POSITION))
    np.testing.assert_array_equal(packed, [7, 0, 1, 2, 3, 4, 5, 8, 9])
    several = jax.tree.map(lambda x: jnp.stack([x, 2 * x, 3 * x]), POSITION)
    state = Anchor(several, jnp.ones(3), POSITION), {"other": jnp.zeros(2)}
    there = packing.pack(state)
    assert there[0].position[ALL].shape == (3, 9) and there[1]["other"].shape == (2,)
    back = packing.unpack(there)
    assert jax.tree.structure(back) == jax.tree.structure(state)
    jax.tree.map(np.testing.assert_array_equal, back, state)


def test_what_a_user_gives_for_each_site():
    packing = Packing(POSITION)
    assert packing.values(3.0) == 3.0 and packing.values(None) is None
    given = packing.values({"a": 1.0, "b": np.asarray([2.0, 3.0, 4.0]), "c": 5.0})
    np.testing.assert_array_equal(given[ALL], [1, 2, 3, 4, 2, 3, 4, 5, 5])


def test_the_first_site_that_is_not_finite():
    mixed = {
        name: value.astype(jnp.float16 if name == "a" else None) for name, value in POSITION.items()
    }
    for position in (POSITION, mixed):
        packing = Packing(position)
        assert packing.is_packed == (position is POSITION)
        assert packing.first_not_finite(packing.pack(position)) == -1
        for number, name in enumerate("abc"):
            bad = position | {name: jnp.full_like(position[name], jnp.nan)}
            if name == "b":
                bad["c"] = jnp.full_like(position["c"], jnp.inf)
            assert packing.first_not_finite(packing.pack(bad)) == number


def test_large_sites_and_those_of_different_types_stay_as_they_are(monkeypatch):
    mixed = POSITION | {"a": jnp.float16(7.0)}
    packed, of_types = Packing(POSITION), Packing(mixed)
    monkeypatch.setattr(packing_module, "MOST_PACKED", 8)
    large = Packing(POSITION)
    for packing, position in ((of_types, mixed), (large, POSITION)):
        assert packing.pack(position) is position and packing.unpack(position) is position
        normals = packing.normals(jax.random.key(0), 1000)
        for name, value in position.items():
            assert normals[name].shape == (1000, *value.shape)
            assert normals[name].dtype == value.dtype
        together = np.concatenate([leaf.reshape(1000, -1) for leaf in normals.values()], axis=1)
        np.testing.assert_allclose(np.cov(together.T), np.eye(9), atol=5 / 1000**0.5)
    assert packed.normals(jax.random.key(0), 3)[ALL].shape == (3, 9)
