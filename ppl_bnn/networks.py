"""Networks of flax NNX, flax Linen and Equinox as pure functions of a dictionary of parameters.

Each library has one adapter below; all give the same `Network`, and each refuses what cannot be a
function of parameters and inputs alone: statistics of earlier batches and random masks.
"""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from flax import errors as flax_errors
from flax import linen, nnx, traverse_util

Parameters = dict[str, jax.Array]


class Network(NamedTuple):
    """A network whose parameters are an argument.

    Attributes
    ----------
    init : callable
        ``init(rng_key, *inputs, **kwargs)`` gives the initial parameters, path -> array. Networks
        that were built with values (NNX, Equinox) ignore the arguments and give those values.
    apply : callable
        ``apply(parameters, *inputs, **kwargs)`` gives the outputs, one row for each row of input.
    shapes_follow_input : bool
        Whether `init` needs the inputs (Linen).
    """

    init: Callable[..., Parameters]
    apply: Callable[..., Any]
    shapes_follow_input: bool


def as_network(net: Any) -> Network:
    """Give the pure function behind a network of one of the three libraries.

    Parameters
    ----------
    net : flax.nnx.Module, flax.linen.Module or equinox.Module
        An instance. It is never changed.

    Returns
    -------
    Network

    Raises
    ------
    TypeError
        If `net` is not an instance of one of the three.
    ValueError
        If `net` keeps batch statistics or other state, or has active dropout (for flax the
        latter shows, and raises, when the network is called).
    """
    if isinstance(net, nnx.Module):
        return _nnx(net)
    if isinstance(net, linen.Module):
        return _linen(net)
    # An Equinox network can only exist where Equinox has been imported already.
    equinox = sys.modules.get("equinox")
    if equinox is not None and isinstance(net, equinox.Module):
        return _equinox(net, equinox)
    got = f"the class {net.__name__}" if isinstance(net, type) else f"a {type(net).__name__}"
    raise TypeError(
        f"net must be an instance of flax.nnx.Module, flax.linen.Module or equinox.Module, got "
        f"{got}; for any other network write numpyro.sample sites by hand"
    )


def _nnx(net: nnx.Module) -> Network:
    graph, state = nnx.split(net)
    parameter_state, rest = nnx.split_state(state, nnx.Param, ...)
    flat_state = dict(nnx.to_flat_state(parameter_state))
    variables = {_dotted(key): (key, variable) for key, variable in flat_state.items()}
    statistics = [
        _dotted(path) for path, leaf in nnx.to_flat_state(rest) if isinstance(leaf, nnx.BatchStat)
    ]
    if statistics:
        raise ValueError(_batch_statistics(statistics))
    draws_before = _draw_counts(rest)

    def init(rng_key: jax.Array | None, *inputs: Any, **kwargs: Any) -> Parameters:
        return {path: variable.get_value() for path, (_, variable) in variables.items()}

    def apply(parameters: Parameters, *inputs: Any, **kwargs: Any) -> Any:
        state = nnx.from_flat_state(
            {key: variable.replace(parameters[path]) for path, (key, variable) in variables.items()}
        )
        module = nnx.merge(graph, state, rest, copy=True)
        outputs = module(*inputs, **kwargs)
        # Any layer that draws random numbers advances its stream's counter: this finds dropout
        # inside attention and in a user's own layers too.
        draws_after = _draw_counts(nnx.state(module, nnx.RngCount))
        drew = [path for path, count in draws_before.items() if draws_after[path] is not count]
        if drew:
            raise ValueError(
                _random_layers(drew, "call `net.eval()` before sampling, or build it with rate 0")
            )
        return outputs

    return Network(init, apply, shapes_follow_input=False)


def _draw_counts(state: Any) -> dict[str, jax.Array]:
    return {
        _dotted(path): leaf.get_value()
        for path, leaf in nnx.to_flat_state(state)
        if isinstance(leaf, nnx.RngCount)
    }


def _linen(net: linen.Module) -> Network:
    cure = "call it with `deterministic=True` (or what its layers name that), or set rate 0"

    def init(rng_key: jax.Array, *inputs: Any, **kwargs: Any) -> Parameters:
        if "rngs" in kwargs:
            raise ValueError(_random_layers([f"rngs={list(kwargs['rngs'])}"], cure))
        collections = dict(linen.meta.unbox(net.init(rng_key, *inputs, **kwargs)))
        parameters = traverse_util.flatten_dict(collections.pop("params", {}), sep=".")
        if "batch_stats" in collections:
            statistics = traverse_util.flatten_dict(collections["batch_stats"], sep=".")
            raise ValueError(_batch_statistics(list(statistics)))
        if collections:
            raise ValueError(
                f"net keeps state in the collections {sorted(collections)}; only 'params' can be "
                "sampled, because an update of any other state would be lost after each call"
            )
        return parameters

    def apply(parameters: Parameters, *inputs: Any, **kwargs: Any) -> Any:
        variables = {"params": traverse_util.unflatten_dict(parameters, sep=".")}
        try:
            return net.apply(variables, *inputs, **kwargs)
        except flax_errors.InvalidRngError as error:
            layer = str(error).split(" needs PRNG")[0]
            raise ValueError(_random_layers([layer], cure)) from error

    return Network(init, apply, shapes_follow_input=True)


def _equinox(net: Any, equinox: Any) -> Network:
    layers = jax.tree_util.tree_leaves_with_path(
        net, is_leaf=lambda node: isinstance(node, equinox.nn.StateIndex | equinox.nn.Dropout)
    )
    statistics = [
        _key_path(path) for path, layer in layers if isinstance(layer, equinox.nn.StateIndex)
    ]
    if statistics:
        raise ValueError(_batch_statistics(statistics))
    active = [
        _key_path(path)
        for path, layer in layers
        if isinstance(layer, equinox.nn.Dropout) and layer.p > 0 and not layer.inference
    ]
    if active:
        cure = "use `equinox.nn.inference_mode(net)`, or build it with p=0"
        raise ValueError(_random_layers(active, cure))

    arrays, static = equinox.partition(net, equinox.is_inexact_array)
    leaves, structure = jax.tree_util.tree_flatten_with_path(arrays)
    values = {_key_path(path): value for path, value in leaves}

    def init(rng_key: jax.Array | None, *inputs: Any, **kwargs: Any) -> Parameters:
        return values

    def apply(parameters: Parameters, *inputs: Any, **kwargs: Any) -> Any:
        new_leaves = [parameters[path] for path in values]
        new_arrays = jax.tree_util.tree_unflatten(structure, new_leaves)
        module = equinox.combine(new_arrays, static)
        # Equinox networks take one row, the others take a batch.
        return jax.vmap(lambda *row: module(*row, **kwargs))(*inputs)

    return Network(init, apply, shapes_follow_input=False)


def _dotted(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))


def _key_path(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _batch_statistics(paths: list[str]) -> str:
    return (
        f"net keeps batch statistics ({', '.join(paths)}): they make the prediction for one row "
        "depend on the other rows, so the likelihood is no product over the data, and running "
        "averages never move while weights are sampled; use layer or group normalisation instead"
    )


def _random_layers(paths: list[str], cure: str) -> str:
    return (
        f"net draws random numbers when it is called ({', '.join(paths)}), as active dropout does: "
        "one fixed mask would serve every draw, and the network sampled would be a thinned one; "
        f"{cure}"
    )
