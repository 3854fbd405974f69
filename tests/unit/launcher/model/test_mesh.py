"""The mesh: reading it, its shapes and coordinates, and what does not fit."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.model import mesh as meshes
from launcher.model.errors import UsageError
from launcher.model.mesh import Axis, Mesh


def test_a_mesh_is_read_from_its_outermost_axis_and_a_size_of_many_digits_is_refused() -> None:
    mesh = meshes.parse("pp=4, dp=*,tp=8")
    assert mesh == Mesh(axes=(Axis(name="pp", size=4), Axis(name="dp", size=None), Axis(name="tp", size=8)))
    assert str(mesh) == "pp=4,dp=*,tp=8"
    assert mesh.replica_size == 32
    assert mesh.resolve_shape(96) == (4, 3, 8)
    with pytest.raises(UsageError, match="neither a positive number"):
        meshes.parse("dp=" + "9" * 5000)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(0, 3), st.integers(1, 5))
def test_coordinates_number_the_ranks_row_by_row(sizes: list[int], elastic_at: int, elastic_size: int) -> None:
    axes = [Axis(name=f"a{at}", size=None if at == elastic_at else size) for at, size in enumerate(sizes)]
    mesh = Mesh(axes=tuple(axes))
    world = mesh.replica_size * (elastic_size if mesh.elastic_axis else 1)
    shape = mesh.resolve_shape(world)
    assert math.prod(shape) == world
    for rank in range(world):
        at = 0
        for coordinate, size in zip(mesh.find_coordinates(rank, shape), shape, strict=True):
            assert 0 <= coordinate < size
            at = at * size + coordinate
        assert at == rank


@pytest.mark.parametrize(("mesh", "world"), [("dp=*,tp=4", 6), ("dp=*,tp=4", 0), ("dp=2,tp=4", 16), ("dp=2", 1)])
def test_a_world_that_does_not_divide_has_no_shape(mesh: str, world: int) -> None:
    with pytest.raises(ValueError, match="does not have"):
        meshes.parse(mesh).resolve_shape(world)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("dp=*,tp=*", "mesh 'dp=*,tp=*' has 2 elastic axes (dp, tp); at most one may be *"),
        ("dp", "mesh 'dp': 'dp' is not NAME=SIZE"),
        ("dp=2,", "mesh 'dp=2,': '' is not NAME=SIZE"),
        ("d-p=2", "mesh 'd-p=2': 'd-p=2' is not NAME=SIZE"),
        ("dp=2,dp=3", "mesh 'dp=2,dp=3' has two axes dp"),
        ("dp=2,DP=3", "mesh 'dp=2,DP=3' has two axes DP"),
        ("dp=0", "mesh 'dp=0': the size of dp is '0', neither a positive number nor *"),
        ("dp=-1", "mesh 'dp=-1': the size of dp is '-1', neither a positive number nor *"),
        ("dp=x", "mesh 'dp=x': the size of dp is 'x', neither a positive number nor *"),
    ],
)
def test_a_mesh_that_means_nothing_is_refused_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        meshes.parse(text)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("mesh", "workers", "sentence"),
    [
        ("dp=*,tp=4", 6, "mesh dp=*,tp=4 needs a multiple of 4 workers, not 6"),
        ("dp=*,tp=4", 2, "mesh dp=*,tp=4 needs a multiple of 4 workers, not 2"),
        ("dp=2,tp=4", 4, "mesh dp=2,tp=4 needs 8 workers, not 4"),
        ("dp=2,tp=4", 16, "mesh dp=2,tp=4 needs 8 workers, not 16"),
        ("dp=*,tp=4", 8, None),
        ("dp=2,tp=4", 8, None),
    ],
)
def test_workers_must_fill_the_mesh(mesh: str, workers: int, sentence: str | None) -> None:
    if sentence is None:
        meshes.require_fit(meshes.parse(mesh), workers)
    else:
        with pytest.raises(UsageError) as caught:
            meshes.require_fit(meshes.parse(mesh), workers)
        assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("shape", "is_of_mesh"), [((4, 1, 8), True), ((4, 9, 8), True), ((4, 9, 4), False), ((4, 8), False), ((), False)]
)
def test_a_grid_is_of_a_mesh_with_any_size_of_its_elastic_axis(shape: tuple[int, ...], is_of_mesh: bool) -> None:
    assert meshes.parse("pp=4,dp=*,tp=8").has_shape(shape) == is_of_mesh
