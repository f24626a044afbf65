"""Device meshes: the rows of the data over one axis, chains over the other."""

from __future__ import annotations

import jax
from jax.sharding import AxisType, Mesh

DATA, CHAINS = "data", "chains"


def mesh(*, data: int | None = None, chains: int = 1) -> Mesh:
    """Mesh over which rows of the data and chains are spread.

    Parameters
    ----------
    data : int, optional
        Number of devices among which the rows of the data are divided. By default all
        devices, divided by `chains`.
    chains : int
        Number of groups of devices, each of which holds all the data and runs its share of the
        vectorised chains.

    Returns
    -------
    jax.sharding.Mesh
        Mesh with the axes ``"data"`` and ``"chains"``.

    Raises
    ------
    ValueError
        If there are fewer devices than ``data * chains``.

    Notes
    -----
    Axes are of type ``Auto``: under explicit axes a slice in a user's model fails.
    """
    available = jax.device_count()
    if chains < 1 or (data is not None and data < 1):
        raise ValueError(f"mesh: `data` and `chains` must be at least 1, got {data=}, {chains=}.")
    if data is None and available % chains:
        raise ValueError(
            f"mesh: chains={chains} does not divide the {available} devices; say how many devices "
            "the rows are divided among, for example "
            f"`mesh(data={max(available // chains, 1)}, chains={chains})`."
        )
    if data is None:
        data = available // chains
    if data * chains > available:
        raise ValueError(
            f"mesh: data={data} times chains={chains} needs {data * chains} devices, but JAX sees "
            f"{available}. Ask for fewer, or, to try things out on a CPU, call "
            f"`numpyro.set_host_device_count({data * chains})` before anything else uses JAX."
        )
    return jax.make_mesh(
        (data, chains),
        (DATA, CHAINS),
        axis_types=(AxisType.Auto, AxisType.Auto),
        devices=jax.devices()[: data * chains],
    )


def check_mesh(mesh: Mesh | None) -> None:
    """Refuse meshes that the likelihood cannot be spread over."""
    if mesh is None:
        return
    if not isinstance(mesh, Mesh) or DATA not in mesh.axis_names:
        raise ValueError(
            f"`mesh` must be a jax.sharding.Mesh with an axis named {DATA!r}, got {mesh!r}. "
            "`ppl_bnn.mesh()` makes one."
        )
    if set(mesh.axis_names) - {DATA, CHAINS}:
        raise ValueError(
            f"`mesh` has the axes {mesh.axis_names}; only {DATA!r} and {CHAINS!r} are understood."
        )
    if any(kind != AxisType.Auto for kind in mesh.axis_types):
        raise ValueError(
            "`mesh` must have axes of type jax.sharding.AxisType.Auto (slices in a model fail "
            "under "
            "explicit axes). `ppl_bnn.mesh()` makes such a mesh."
        )


def size(mesh: Mesh | None, axis: str) -> int:
    """Devices along an axis, 1 where there is no mesh or no such axis."""
    return 1 if mesh is None else mesh.shape.get(axis, 1)
