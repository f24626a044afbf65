"""Turn the weights of a neural network into NumPyro sample sites."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from ppl_bnn.input_checks import note_call
from ppl_bnn.networks import Parameters, as_network
from ppl_bnn.priors import Prior, expand_to_event
from ppl_bnn.priors.by_name import how_to_write

Shapes = dict[str, tuple[int, ...]]
_num_rows: ContextVar[int | None] = ContextVar("rows that may have weights each", default=None)
_dtype: ContextVar[Any] = ContextVar("type in which networks compute", default=None)


@contextmanager
def _set(variable: ContextVar, value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def weights_by_row(num_rows: int) -> AbstractContextManager[None]:
    """Let sites be given values with a leading axis of rows, for layers that take them."""
    return _set(_num_rows, num_rows)


def computing_in(dtype: Any) -> AbstractContextManager[None]:
    """Let networks compute in another floating-point type, and give float32 again; None: as is."""
    return _set(_dtype, dtype)


def random_module(name: str, net: Any, prior: Prior) -> Callable[..., Any]:
    """Give a network whose weights are sampled from a prior, to be used inside a NumPyro model.

    Every parameter becomes the sample site ``f"{name}/{path}"``, for instance
    ``net/layers.0.kernel``, of which all dimensions are event dimensions. The values that `net`
    was built with are not used (`initial_weights` gives them to a sampler as its start), and
    `net` itself is not changed.

    Parameters
    ----------
    name : str
        Prefix of the site names.
    net : flax.nnx.Module, flax.linen.Module or equinox.Module
        The network. Its parameters are the ``nnx.Param`` variables, the ``params`` collection or
        the floating-point arrays respectively; an Equinox network takes one row and is mapped
        over the leading axis of its inputs.
    prior : Distribution, dict or callable
        One distribution for each element of every parameter; or a callable ``(path, shape)``, such
        as those of `ppl_bnn.priors`; or a dict of these by path. The keys of a dict may be glob
        patterns (``*`` also matches dots); an exact path goes first, then the first pattern that
        matches.

        A distribution is broadcast to the parameter's shape, with its own event dimensions
        last. A callable may also return an array of the parameter's shape, built from sample
        sites of its own (hierarchical priors); the names of these sites get the same prefix.

    Returns
    -------
    callable
        Takes what `net` takes and gives what it gives. Repeated calls use the same weights.
        Linen parameters are sampled at the first call, since only the inputs tell their shapes;
        all others at once. Both must happen outside of any plate and of `jax.vmap`.

    Raises
    ------
    ValueError
        If a parameter has no prior, a key of `prior` gives no parameter its prior, a prior does
        not fit the shape of its parameter, weights are sampled inside a plate, `net` has no
        parameters, or it has batch statistics or active dropout.
    TypeError
        If `net` or `prior` is something else than the above.

    Examples
    --------
    >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist
    >>> from flax import nnx
    >>> net = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
    >>> prior = {"kernel": dist.Normal(0, 0.5), "*": dist.Normal(0, 1)}
    >>> with numpyro.handlers.seed(rng_seed=0):
    ...     random_module("net", net, prior)(jnp.ones((5, 3))).shape
    (5, 1)
    """
    network = as_network(net)
    weights: Parameters = {}

    def sample_weights(*inputs: Any, **kwargs: Any) -> None:
        structs = jax.eval_shape(lambda: network.init(jax.random.key(0), *inputs, **kwargs))
        shapes = {path: tuple(struct.shape) for path, struct in structs.items()}
        if not shapes:
            raise ValueError(
                f"net has no parameters to sample ({type(net).__name__}); in flax NNX they must be "
                "nnx.Param variables"
            )

        def initial() -> Parameters:
            return network.init(jax.random.key(0), *inputs, **kwargs)

        weights.update(_sample_weights(name, shapes, prior, initial))

    if not network.shapes_follow_input:
        sample_weights()

    def random_net(*inputs: Any, **kwargs: Any) -> Any:
        if not weights:
            sample_weights(*inputs, **kwargs)
        note_call(net, inputs, kwargs)
        dtype = _dtype.get()
        if dtype is None:
            return network.apply(weights, *inputs, **kwargs)
        few_bits = _cast((weights, inputs, kwargs), dtype)
        return _cast(network.apply(few_bits[0], *few_bits[1], **few_bits[2]), jnp.float32)

    return random_net


def _cast(tree: Any, dtype: Any) -> Any:
    """All floating-point arrays in another type."""

    def cast(leaf: Any) -> Any:
        is_float = hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)
        return jnp.asarray(leaf, dtype) if is_float else leaf

    return jax.tree.map(cast, tree)


def initial_weights(
    name: str, net: Any, *inputs: Any, rng_key: jax.Array | None = None, **kwargs: Any
) -> Parameters:
    """Give the values that a network was initialised with, by the site names of `random_module`.

    They suit ``numpyro.infer.init_to_value(values=...)``.

    Parameters
    ----------
    name : str
        The name that `random_module` gets.
    net : flax.nnx.Module, flax.linen.Module or equinox.Module
        The network.
    *inputs, **kwargs
        Linen only: inputs to initialise with, as the network takes them.
    rng_key : jax.Array, optional
        Linen only: the key to initialise with. The other libraries initialise a network when it is
        built.

    Returns
    -------
    dict of str to jax.Array
        Site name to value.

    Raises
    ------
    ValueError
        If `net` is a Linen network and `inputs` or `rng_key` are not given.
    """
    network = as_network(net)
    if network.shapes_follow_input and (rng_key is None or not inputs):
        raise ValueError(
            "a flax Linen network has no weights before it sees data: call "
            "initial_weights(name, net, x, rng_key=key)"
        )
    values = network.init(rng_key, *inputs, **kwargs)
    return {f"{name}/{path}": value for path, value in values.items()}


def _sample_weights(
    name: str, shapes: Shapes, prior: Any, initial: Callable[[], Parameters]
) -> Parameters:
    by_path = _prior_of_each(shapes, prior)
    with numpyro.handlers.scope(prefix=name):
        resolved = {path: _resolve(by_path[path], path, shapes[path]) for path in by_path}
        missing = [path for path in shapes if resolved.get(path) is None]
        if missing:
            raise ValueError(
                f"prior gives nothing for the parameters {missing} of {name!r}: they would stay "
                "at their initial values; add keys for them or a last key '*' for all others"
            )
        return {
            path: _sample_weight(
                path, shapes[path], resolved[path], partial(_initial_weight, initial, path)
            )
            for path in shapes
        }


def _initial_weight(initial: Callable[[], Parameters], path: str) -> jax.Array:
    return initial()[path]


def _prior_of_each(shapes: Shapes, prior: Any) -> dict[str, Any]:
    """Give each path its distribution or callable; paths that have none are left out."""
    if not isinstance(prior, Mapping):
        return dict.fromkeys(shapes, prior)
    matches = {key: {path for path in shapes if fnmatchcase(path, key)} for key in prior}
    unmatched = [key for key in prior if not matches[key] and key not in shapes]
    if unmatched:
        raise ValueError(
            f"prior has keys that match no parameter: {unmatched}; the parameters are "
            f"{list(shapes)}"
        )
    patterns = [key for key in prior if key not in shapes]
    for position, key in enumerate(patterns):
        # A later '*' that finds nothing left is a harmless default; a special case behind its
        # general one is a prior that the user believes in and never gets.
        for earlier in patterns[:position]:
            if matches[key] < matches[earlier]:
                raise ValueError(
                    f"prior key {key!r} is never used, because {earlier!r} comes before it and "
                    "matches all that it matches; put the special key first"
                )
    chosen = {}
    for path in shapes:
        key = path if path in prior else next((p for p in patterns if path in matches[p]), None)
        if key is not None:
            chosen[path] = prior[key]
    return chosen


def _resolve(prior: Any, path: str, shape: tuple[int, ...]) -> Any:
    if isinstance(prior, dist.Distribution):
        return prior
    if isinstance(prior, type) or not callable(prior):
        got = f"the class {prior.__name__}" if isinstance(prior, type) else repr(prior)
        if isinstance(prior, str):
            got += f": {how_to_write(prior)}"
        raise TypeError(
            f"prior of {path!r} must be a NumPyro distribution (as in dist.Normal(0, 1)) or a "
            f"callable (path, shape), got {got}"
        )
    return prior(path, shape)


def _sample_weight(
    path: str, shape: tuple[int, ...], prior: Any, initial: Callable[[], jax.Array]
) -> jax.Array:
    if isinstance(prior, dist.Distribution):
        expanded = expand_to_event(prior, shape, f"parameter {path!r}")
        # for samplers that start from the network's own initialisation
        value = numpyro.sample(path, expanded, infer={"initial_value": initial})
        if np.shape(value) not in (shape, (_num_rows.get(), *shape)):
            raise ValueError(
                f"parameter {path!r} has shape {shape}, but the value of its site has shape "
                f"{np.shape(value)}: either the network was made (flax Linen: first called) inside "
                "a plate, while all data share the weights; or values from another network, or "
                "with other leading axes, were given for the site (draws grouped by chain need "
                "`group_by_chain=True`)"
            )
        return jnp.asarray(value)
    if not isinstance(prior, jax.Array | np.ndarray):
        raise TypeError(
            f"prior callable gave {prior!r} for {path!r}; it must return a NumPyro distribution or "
            f"an array of shape {shape}"
        )
    if prior.shape != shape:
        raise ValueError(
            f"prior callable gave an array of shape {prior.shape} for parameter {path!r}, which "
            f"has shape {shape}"
        )
    return jnp.asarray(prior)
