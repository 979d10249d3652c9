"""Scripts with a variant "mended" that follows the first remedy for the original.

A script's words: VARIANT SECONDS PATH; it counts its own turns for that long and leaves turns a second in PATH.
"""

TURNS = """
import csv, json, os, sys, time
import gymnasium, numpy as np, torch

torch.set_num_threads(1)
mended, seconds, output = sys.argv[1] == "mended", float(sys.argv[2]), sys.argv[3]

def busy(duration):
    until = time.perf_counter() + duration
    while time.perf_counter() < until:
        sum(range(50))

class World(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def __init__(self, cost=0.0, pause=0.0):
        self.cost, self.pause = cost, pause
    def reset(self, *, seed=None, options=None):
        return np.zeros(4, np.float32), {}
    def step(self, action):
        busy(self.cost)
        if self.pause:
            time.sleep(self.pause)
        return np.zeros(4, np.float32), 0.0, False, False, {}

layers = torch.nn.Linear(4, 128), torch.nn.Tanh(), torch.nn.Linear(128, 128), torch.nn.Linear(128, 2)
network = torch.nn.Sequential(*layers)

def learn(optimizer, rows=64):
    loss = network(torch.ones(rows, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

def run(turn):
    for number in range(20):
        turn(number)
    started, number = time.perf_counter(), 0
    while time.perf_counter() < started + seconds:
        turn(number)
        number += 1
    with open(output, "w") as file:
        json.dump(number / (time.perf_counter() - started), file)

def adam(**options):
    return torch.optim.Adam(network.parameters(), **options)
"""
FIRST = {  # name -> (words of the first remedy's title, script)
    "sleep": (
        "Remove the sleeping",
        """
world, optimizer = World(0.002), adam()
def turn(number):
    world.step(0)
    learn(optimizer)
    if not mended:
        time.sleep(0.003)
run(turn)
""",
    ),
    "logging": (
        "Log ten times less often",
        """
world, optimizer, file = World(0.001), adam(), open(output + ".csv", "w")
writer = csv.writer(file)
def turn(number):
    world.step(0)
    learn(optimizer)
    if not mended or number % 10 == 0:
        for row in range(400):
            writer.writerow([number, row, 0.5, 0.25])
            file.flush()
run(turn)
""",
    ),
    "evaluation": (
        "Evaluate ten times less often",
        """
world, optimizer = World(0.0005), adam()
def evaluate(steps):
    observation, _ = world.reset()
    total = 0.0
    for _ in range(steps):
        with torch.no_grad():
            action = network(torch.as_tensor(observation)).argmax().item()
        observation, reward, terminated, truncated, _ = world.step(action)
        total += reward
    return total
def turn(number):
    world.step(0)
    learn(optimizer)
    if number % (100 if mended else 10) == 0:
        evaluate(30)
run(turn)
""",
    ),
    "straggler": (
        "slower",
        """
if __name__ == "__main__":
    pauses = [0.002, 0.002, 0.002 if mended else 0.010]
    worlds = gymnasium.vector.AsyncVectorEnv([lambda pause=pause: World(pause=pause) for pause in pauses])
    optimizer = adam()
    worlds.reset()
    def turn(number):
        worlds.step(np.zeros(3, int))
        learn(optimizer)
        learn(optimizer)
    run(turn)
    worlds.close()
""",
    ),
    "cheap worlds in processes": (
        "own process",
        """
if __name__ == "__main__":
    kind = gymnasium.vector.SyncVectorEnv if mended else gymnasium.vector.AsyncVectorEnv
    worlds, optimizer = kind([World] * 4), adam()
    worlds.reset()
    def turn(number):
        worlds.step(np.zeros(4, int))
        if number % 4 == 0:
            learn(optimizer)
    run(turn)
    worlds.close()
""",
    ),
    "optimizer": (
        "fused",
        """
world, optimizer = World(0.0001), adam(fused=True) if mended else adam()
def turn(number):
    world.step(0)
    learn(optimizer, 16)
run(turn)
""",
    ),
}

LOOP = """
import json, os, sys, time
import gymnasium, numpy, torch

torch.set_num_threads(1)
torch.manual_seed(0)
better, seconds, output = sys.argv[1] == "mended", float(sys.argv[2]), sys.argv[3]


def spend(n):
    for _ in range(n):
        numpy.linalg.norm(numpy.arange(64.0))


class Place(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-9.0, 9.0, (6,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, n):
        self.n, self.t = n, 0

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return numpy.ones(6, numpy.float32), {}

    def step(self, action):
        spend(self.n)
        self.t += 1
        return numpy.ones(6, numpy.float32), 0.5, self.t > 40, False, {}


class Player:
    def __init__(self, place, sizes=(6, 48, 48, 3), **kind):
        pairs = zip(sizes[:-1], sizes[1:])
        self.net = torch.nn.Sequential(*[part for i, o in pairs for part in (torch.nn.Linear(i, o), torch.nn.ReLU())])
        self.opt = torch.optim.Adam(self.net.parameters(), lr=1e-3, **kind)
        self.place, self.x, self.kept = place, place.reset()[0], []

    def move(self):
        with torch.no_grad():
            a = int(self.net(torch.from_numpy(self.x)[None]).argmax(1))
        self.kept.append((self.x, a))
        self.x, _, done, _, _ = self.place.step(a)
        if done:
            self.x, _ = self.place.reset()

    def improve(self):
        x = torch.from_numpy(numpy.stack([x for x, _ in self.kept[-32:]]))
        a = torch.tensor([a for _, a in self.kept[-32:]])
        loss = torch.nn.functional.cross_entropy(self.net(x), a)
        self.opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
        self.opt.step()
        del self.kept[:-200]
        return loss


def repeat(turn):
    for n in range(10):
        turn(n)
    began = time.perf_counter()
    while time.perf_counter() < began + seconds:
        n += 1
        turn(n)
    with open(output, "w") as file:
        json.dump((n - 9) / (time.perf_counter() - began), file)

"""
# Written when the constants of the remedies had been chosen. One was raised since: sleep and workers had gained more.
FRESH = {
    "lines that are written at once": (
        "Log ten times less often",
        """
player, lines = Player(Place(40)), open(output + ".log", "w")
def turn(n):
    player.move()
    if n % 4 == 0:
        player.improve()
    if n % 10 == 0 or not better:
        for each in range(150):
            print(json.dumps({"n": n, "each": each, "now": time.time()}), file=lines, flush=True)
repeat(turn)
""",
    ),
    "a look at how good it is": (
        "Evaluate ten times less often",
        """
player, other = Player(Place(10)), Place(10)
def quality(net, rounds):
    scores = []
    for _ in range(rounds):
        x, _ = other.reset()
        score, done = 0.0, False
        while not done:
            with torch.no_grad():
                a = int(net(torch.from_numpy(x)[None]).argmax(1))
            x, r, done, _, _ = other.step(a)
            score += r
        scores.append(score)
    return sum(scores) / rounds
def turn(n):
    player.move()
    player.improve()
    if n % (100 if better else 10) == 0:
        quality(player.net, 2)
repeat(turn)
""",
    ),
    "a wrapper that takes its time": (
        "Remove the sleeping",
        """
class Gentle(gymnasium.Wrapper):
    def step(self, action):
        if not better:
            time.sleep(0.002)
        return self.env.step(action)
player = Player(Gentle(Place(60)))
def turn(n):
    player.move()
    player.improve()
repeat(turn)
""",
    ),
    "weights that are kept": (
        "Save ten times less often",
        """
player = Player(Place(60), (6, 128, 128, 3))
def turn(n):
    player.move()
    player.improve()
    if n % (20 if better else 2) == 0:
        torch.save({"net": player.net.state_dict(), "opt": player.opt.state_dict()}, output + ".pt")
repeat(turn)
""",
    ),
    "carts in processes": (
        "own process",
        """
if __name__ == "__main__":
    way = "sync" if better else "async"
    carts, player = gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode=way), Player(Place(0))
    carts.reset(seed=0)
    def turn(n):
        for _ in range(4):
            carts.step(carts.action_space.sample())
        player.move()
        player.improve()
    repeat(turn)
    carts.close()
""",
    ),
    "a deep network": (
        "fused",
        """
player = Player(Place(5), (6, *[24] * 8, 3), **({"fused": True} if better else {}))
def turn(n):
    if n % 4 == 0:
        player.move()
    player.improve()
repeat(turn)
""",
    ),
}
