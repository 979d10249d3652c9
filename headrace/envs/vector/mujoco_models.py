"""Change models of MuJoCo such that steps leave out unneeded computations, with the same results."""

from __future__ import annotations

import warnings
from itertools import combinations
from typing import Any

import numpy as np

CHECKED = 2, 60  # episodes and steps in which a changed model must equal the original, bit for bit


def without_islands(model: Any) -> None:
    """Disable MuJoCo's search for groups of touching bodies (islands), if the model is a single tree of bodies."""
    import mujoco

    flag = getattr(mujoco.mjtDisableBit, "mjDSBL_ISLAND", None)  # before MuJoCo 3.3.6 it looked for none by itself
    sleeps = getattr(mujoco.mjtEnableBit, "mjENBL_SLEEP", 0)
    if flag is not None and model.ntree == 1 and not model.opt.enableflags & int(sleeps):
        model.opt.disableflags |= int(flag)


def listed(path: str, model: Any, repeats: int) -> Any:
    """List the pairs of geoms that may collide in a model, so that steps do not search for them.

    path: the file of `model`. repeats: calls of mj_step in a step. Returns `model` itself if bodies with several geoms
    may touch each other, since contacts are then sorted differently; if MuJoCo cannot list the pairs; and if
    simulations of the two models differ.
    """
    import mujoco

    pairs = _pairs(model)
    usual = (model.geom_priority == 0).all() and (model.geom_solmix == 1).all() and (model.geom_solref > 0).all()
    bodies = [model.geom_bodyid[[*pair]] for pair in pairs]
    if not usual or any(pair.all() and (model.body_geomnum[pair] > 1).any() for pair in bodies):
        return model
    try:
        with warnings.catch_warnings(action="ignore"):  # on what is deprecated in the file
            found = _with_pairs(mujoco.MjSpec.from_file(path), model, pairs)
    except (AttributeError, TypeError):  # of a MuJoCo that edits models in another way, or not
        return model
    return found if _same(model, found, repeats) else model


def _pairs(model: Any) -> list[tuple[int, int]]:
    """The pairs of geoms that may collide by MuJoCo's rules: not within a body, nor with its parent."""
    weld = model.body_weldid
    above, kinds, others = weld[model.body_parentid[weld]], model.geom_contype, model.geom_conaffinity
    pairs = []
    for i, j in combinations(range(model.ngeom), 2):
        a, b = weld[model.geom_bodyid[[i, j]]]
        related = a == b or (a and b and (above[a] == b or above[b] == a))
        if not related and (kinds[i] & others[j] or kinds[j] & others[i]):
            pairs.append((i, j))
    return pairs


def _with_pairs(spec: Any, model: Any, pairs: list[tuple[int, int]]) -> Any:
    """Compile a model with these pairs alone, each as MuJoCo would combine its two geoms."""
    spec.compile()  # which numbers the geoms
    geoms = sorted(spec.geoms, key=lambda geom: geom.id)
    for k, geom in enumerate(geoms):
        geom.name, geom.contype, geom.conaffinity = geom.name or f"geom {k}", 0, 0
    for i, j in pairs:
        both = [i, j]
        spec.add_pair(
            geomname1=geoms[i].name,
            geomname2=geoms[j].name,
            condim=model.geom_condim[both].max(),
            friction=model.geom_friction[both].max(0)[[0, 0, 1, 2, 2]],
            **{name: getattr(model, f"geom_{name}")[both].sum(0) for name in ("margin", "gap")},
            **{name: getattr(model, f"geom_{name}")[both].mean(0) for name in ("solref", "solimp")},
        )
    return spec.compile()


def _same(model: Any, other: Any, repeats: int) -> bool:
    """True if simulations of both models have the same bits, with random controls from random states, and collide."""
    import mujoco

    random, datas = np.random.default_rng(0), [mujoco.MjData(each) for each in (model, other)]
    collided = other.npair == 0
    for step in range(CHECKED[0] * CHECKED[1]):
        begins, shift = step % CHECKED[1] == 0, random.uniform(-0.1, 0.1, model.nq)
        controls, seen = random.uniform(-1, 1, model.nu), []
        for each, data in zip((model, other), datas, strict=True):
            if begins:
                mujoco.mj_resetData(each, data)
                data.qpos += shift
            data.ctrl[:] = controls
            mujoco.mj_step(each, data, repeats)
            mujoco.mj_rnePostConstraint(each, data)
            seen.append(np.concatenate([data.qpos, data.qvel, data.cfrc_ext.ravel()]).tobytes())
        if seen[0] != seen[1]:
            return False
        collided |= data.ncon > 0
    return collided
