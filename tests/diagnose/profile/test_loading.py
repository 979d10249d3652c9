"""A call that reads a network and builds it again in each turn is one part of the time."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.diagnose.profile.profile import Role
from headrace.diagnose.profile.role_patterns import Hints
from headrace.diagnose.profile.roles import Classifier
from headrace.diagnose.profile.spool import Code, Place, Sample

TEXT = (
    "while True:\n    rival = pick()\n    x = world.put(net(x), rival)\n    L = f(net(x)); L.backward(); opt.step()\n"
)
LIBRARY = {
    "reads": Code("/x/site-packages/torch/serialization.py", "load", "torch.serialization", 1, ()),
    "builds": Code("/x/site-packages/torch/nn/init.py", "kaiming_uniform_", "torch.nn.init", 1, ()),
    "copies": Code("/x/site-packages/torch/nn/modules/module.py", "Module.load_state_dict", "torch.nn.modules", 1, ()),
}
BACKWARD = Code("/x/site-packages/torch/_tensor.py", "Tensor.backward", "torch._tensor", 1, ())


@pytest.mark.parametrize(
    ("seconds", "role"),
    [
        ({"reads": 2.0, "builds": 3.0, "copies": 1.0}, Role.READING),
        ({"reads": 1.0, "builds": 4.0, "copies": 1.0}, Role.REMADE),
        ({"reads": 1.0, "builds": 1.0, "copies": 8.0}, None),
    ],
)
def test_reading_and_building_of_one_call_are_one_part(
    seconds: dict[str, float], role: Role | None, tmp_path: Path
) -> None:
    path = tmp_path / "run.py"
    path.write_text(TEXT)
    main = Code(str(path), "<module>", "__main__", 1, ())
    kinds = (("net", "network"), ("opt", "optimizer"))
    pick, back = Place(main, 2, 2, 12, 18, (), kinds), Place(main, 4, 4, 19, 31, (), kinds)
    stacks = {name: (Place(code, 1), pick) for name, code in LIBRARY.items()}
    samples = []
    for turn in range(5):
        for name, stack in stacks.items():
            samples.append(Sample(10.0 * turn + len(samples), seconds[name], stack, variables=turn))
        samples.append(Sample(10.0 * turn + len(samples), 0.1, (Place(BACKWARD, 1), back), variables=turn))
    classifier = Classifier(Hints(), cuda=False)
    classifier.learn_from(samples)
    found = {name: classifier.classify(stack)[0] for name, stack in stacks.items()}
    assert set(found.values()) == {role} if role else len(set(found.values())) == 3
