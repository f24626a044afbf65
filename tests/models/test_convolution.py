"""models.convolution: the same values and gradients as jax.lax, in every transformation."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from jax.sharding import PartitionSpec

import ppl_bnn
from ppl_bnn.models import conv_general_dilated

# space, window, strides, padding
CASES = {
    "2-D same": ((7, 6), (3, 3), (1, 1), "SAME"),
    "2-D valid": ((7, 6), (3, 2), (1, 1), "VALID"),
    "2-D stride": ((8, 7), (3, 3), (2, 2), "SAME"),
    "2-D stride valid": ((9, 8), (3, 3), (2, 3), "VALID"),
    "2-D stride that leaves cells over": ((10, 9), (3, 2), (4, 3), "VALID"),
    "2-D 1x1 stride": ((8, 6), (1, 1), (2, 2), "SAME"),
    "2-D wide padding": ((5, 4), (2, 3), (1, 1), [(3, 0), (2, 5)]),
    "2-D cropping": ((7, 8), (3, 3), (1, 2), [(-1, 0), (1, -2)]),
    "1-D valid": ((12,), (5,), (1,), "VALID"),
    "1-D same stride": ((11,), (4,), (3,), "SAME"),
}
FLAX = {1: ("NWC", "WIO", "NWC"), 2: ("NHWC", "HWIO", "NHWC")}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def arrays(space, window, *, copies=(None, None), channels=(3, 4)):
    rng = np.random.default_rng(0)
    lead = [() if n is None else (n,) for n in copies]
    lhs = rng.normal(size=(*lead[0], 2, *space, channels[0]))
    rhs = rng.normal(size=(*lead[1], *window, *channels))
    return jnp.asarray(lhs), jnp.asarray(rhs)


def pair(case, **options):
    """Our convolution and lax's, of inputs and kernel."""
    space, _, strides, padding = CASES[case]
    options = {"dimension_numbers": FLAX[len(space)], "padding": padding} | options
    return [
        partial(function, window_strides=strides, **options)
        for function in (conv_general_dilated, lax.conv_general_dilated)
    ]


def score(function):
    """A number that depends on every output in another way."""

    def total(*args):
        out = function(*args)
        return jnp.sum(jnp.sin(out) * jnp.arange(out.size, dtype=out.dtype).reshape(out.shape))

    return total


def check(ours, lax_, args):
    got, expected = ours(*args), lax_(*args)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("case", CASES)
def test_value_and_gradients(case):
    ours, lax_ = pair(case)
    args = arrays(*CASES[case][:2])
    assert "custom_vjp" in str(jax.make_jaxpr(ours)(*args))
    check(ours, lax_, args)
    check(*[jax.jit(jax.grad(score(f), argnums=(0, 1))) for f in (ours, lax_)], args)


@pytest.mark.parametrize("copies", [(3, None), (None, 3), (3, 3)])
@pytest.mark.parametrize("case", ["2-D stride", "1-D valid"])
def test_mapped(case, copies):
    axes = tuple(None if n is None else 0 for n in copies)
    args = arrays(*CASES[case][:2], copies=copies)
    mapped = [jax.vmap(f, axes) for f in pair(case)]
    check(*mapped, args)
    check(*[jax.jit(jax.grad(score(f), argnums=(0, 1))) for f in mapped], args)
    check(*[jax.jit(jax.vmap(jax.grad(score(f), (0, 1)), axes)) for f in pair(case)], args)


def test_mapped_over_other_axes_and_twice():
    lhs, rhs = arrays((7, 6), (3, 3), copies=(3, 2))
    lhs, rhs = jnp.moveaxis(lhs, 0, 2), jnp.moveaxis(rhs, 0, -1)

    def twice(function):
        gradient = jax.grad(score(function), argnums=(0, 1))
        return jax.vmap(jax.vmap(gradient, (None, -1)), (2, None))

    check(*[twice(f) for f in pair("2-D same")], (lhs, rhs))


def test_in_a_loop():
    lhs, rhs = arrays((8, 7), (3, 3))

    def descend(function):
        gradient = jax.grad(score(function), argnums=(0, 1))

        def body(_, args):
            return jax.tree.map(lambda a, g: a - 1e-4 * g, args, gradient(*args))

        return lambda *args: lax.fori_loop(0, 3, body, args)

    check(*[jax.jit(descend(f)) for f in pair("2-D stride")], (lhs, rhs))


@pytest.mark.parametrize("check_vma", [True, False])
def test_over_devices(check_vma):
    """Gradient of a replicated kernel, inputs divided over devices."""
    mesh = ppl_bnn.mesh(data=2)
    lhs, rhs = arrays((8, 7), (3, 3))
    rows = PartitionSpec("data")

    def spread(function):
        def gradients(lhs, rhs):
            # no sum over devices of what is replicated without `check_vma`
            grad_lhs, grad_rhs = jax.grad(score(function), argnums=(0, 1))(lhs, rhs)
            return grad_lhs, grad_rhs if check_vma else lax.psum(grad_rhs, "data")

        return jax.jit(
            jax.shard_map(
                gradients,
                mesh=mesh,
                in_specs=(rows, PartitionSpec()),
                out_specs=(rows, PartitionSpec()),
                check_vma=check_vma,
            )
        )

    check(*[spread(f) for f in pair("2-D stride")], (lhs, rhs))


def test_under_a_custom_derivative_rule():
    """As the likelihood in chunks computes it: no tracer of one program in another."""
    args = arrays((8, 7), (3, 3))

    def with_rule(function):
        gradient = jax.grad(score(function), argnums=(0, 1))

        @jax.custom_vjp
        def total(*args):
            return score(function)(*args)

        def forward(*args):
            return total(*args), lax.scan(lambda c, _: (c, gradient(*args)), 0.0, None, 2)[1]

        total.defvjp(forward, lambda grads, g: jax.tree.map(lambda a: g * a[1], grads))
        stacked = jax.tree.map(lambda a: jnp.stack([a, 2 * a]), args)
        return jax.jit(jax.vmap(jax.grad(total, argnums=(0, 1))))(*stacked)

    ours, lax_ = [with_rule(f) for f in pair("2-D stride")]
    for a, b in zip(ours, lax_, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


def test_second_derivatives_in_reverse_mode():
    args = arrays((8, 7), (3, 3))

    def of_gradient(function):
        def length(*args):
            grads = jax.grad(score(function), argnums=(0, 1))(*args)
            return sum(jnp.sum(g**2) for g in grads)

        return jax.grad(length, argnums=(0, 1))

    ours, lax_ = [of_gradient(f)(*args) for f in pair("2-D stride")]
    for a, b in zip(ours, lax_, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10 * float(jnp.abs(b).max()))


def test_forward_mode_is_refused():
    ours, _ = pair("2-D same")
    args = arrays((7, 6), (3, 3))
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(ours, args, args)


@pytest.mark.parametrize(
    "options",
    [
        {"feature_group_count": 3},
        {"rhs_dilation": (2, 2)},
        {"lhs_dilation": (2, 1), "padding": [(1, 1), (0, 2)]},
        {"dimension_numbers": ("NWHC", "HWIO", "NHWC")},
        {"preferred_element_type": jnp.float64},
    ],
)
def test_what_is_not_covered_is_left_to_lax(options):
    ours, lax_ = pair("2-D same", **options)
    channels = (1, 6) if "feature_group_count" in options else (3, 4)
    lhs, _ = arrays((7, 6), (3, 3))
    _, rhs = arrays((7, 6), (3, 3), channels=channels)
    assert "custom_vjp" not in str(jax.make_jaxpr(ours)(lhs, rhs))
    check(*[jax.grad(score(f), argnums=(0, 1)) for f in (ours, lax_)], (lhs, rhs))


def test_other_platforms_use_lax(monkeypatch):
    ours, lax_ = pair("2-D same")
    args = arrays((7, 6), (3, 3))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert str(jax.make_jaxpr(ours)(*args)) == str(jax.make_jaxpr(lax_)(*args))


def test_kernels_are_mapped_one_by_one():
    """No grouped convolution, which is the slow one."""

    def groups(function):
        lhs, rhs = arrays((7, 6), (3, 3), copies=(4, 4))
        gradient = jax.vmap(jax.grad(score(function), argnums=(0, 1)))
        found = re.findall(r"_group_count=(\d+)", str(jax.make_jaxpr(gradient)(lhs, rhs)))
        return {int(n) for n in found}

    ours, lax_ = pair("2-D same")
    assert groups(ours) == {1}
    assert groups(lax_) == {1, 4}


@pytest.mark.parametrize("padding", ["SAME", "VALID", "CIRCULAR", 1])
def test_in_a_flax_layer(padding):
    def layer(function):
        return nnx.Conv(
            3, 4, (3, 3), padding=padding, conv_general_dilated=function, rngs=nnx.Rngs(0)
        )

    lhs, _ = arrays((7, 6), (3, 3))
    ours, lax_ = layer(conv_general_dilated), layer(lax.conv_general_dilated)
    np.testing.assert_allclose(ours(lhs), lax_(lhs), rtol=1e-10, atol=1e-12)
    grads = [nnx.grad(lambda net: jnp.sum(jnp.sin(net(lhs))))(net) for net in (ours, lax_)]
    for a, b in zip(*map(jax.tree.leaves, grads), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_wrong_shapes_raise_what_lax_raises():
    ours, _ = pair("2-D same")
    lhs, _ = arrays((7, 6), (3, 3))
    _, rhs = arrays((7, 6), (3, 3), channels=(2, 4))
    with pytest.raises(ValueError, match="feature"):
        ours(lhs, rhs)
    with pytest.raises((TypeError, ValueError), match="ndim"):
        ours(lhs, rhs[0])
