# Four-in-a-row self play: search + value/policy net.
import copy, math, random
import numpy as np, torch
from torch import nn
import torch.nn.functional as F

ROWS, COLS = 6, 7


class Game:
    def __init__(self):
        self.board = [[0] * COLS for _ in range(ROWS)]
        self.turn, self.moves, self.winner, self.over = 1, [], 0, False

    def legal(self):
        return [c for c in range(COLS) if self.board[0][c] == 0]

    def play(self, c):
        for r in range(ROWS - 1, -1, -1):
            if self.board[r][c] == 0:
                break
        self.board[r][c] = self.turn
        self.moves.append((r, c))
        if self.four(r, c):
            self.winner, self.over = self.turn, True
        elif len(self.moves) == ROWS * COLS:
            self.over = True
        self.turn = -self.turn

    def four(self, r, c):
        me = self.board[r][c]
        for dr, dc in ((0, 1), (1, 0), (1, 1), (1, -1)):
            n = 1
            for sgn in (1, -1):
                y, x = r + sgn * dr, c + sgn * dc
                while 0 <= y < ROWS and 0 <= x < COLS and self.board[y][x] == me:
                    n += 1
                    y += sgn * dr; x += sgn * dc
            if n >= 4:
                return True
        return False

    def planes(self):
        b = np.asarray(self.board, np.float32) * self.turn
        return np.stack([b > 0, b < 0]).astype(np.float32)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Flatten(), nn.Linear(84, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.p, self.v = nn.Linear(128, COLS), nn.Linear(128, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.p(h), torch.tanh(self.v(h)).squeeze(-1)


class Node:
    __slots__ = ("game", "prior", "n", "w", "kids")

    def __init__(self, game, prior):
        self.game, self.prior, self.n, self.w, self.kids = game, prior, 0, 0.0, {}


def expand(node, net):
    with torch.no_grad():
        logit, v = net(torch.from_numpy(node.game.planes())[None])
    pri = logit[0].softmax(-1).tolist()
    for c in node.game.legal():
        g = copy.deepcopy(node.game)
        g.play(c)
        node.kids[c] = Node(g, pri[c])
    return v.item()


def search(root, net, sims):
    if not root.kids:
        expand(root, net)
    for _ in range(sims):
        node, path = root, [root]
        while node.kids:
            s = math.sqrt(node.n + 1)
            node = max(node.kids.values(), key=lambda k: -(k.w / k.n if k.n else 0.0) + 1.5 * k.prior * s / (1 + k.n))
            path.append(node)
        if node.game.over:
            v = -1.0 if node.game.winner else 0.0
        else:
            v = expand(node, net)
        for nd in reversed(path):
            nd.n += 1
            nd.w += v
            v = -v
    pi = np.zeros(COLS, np.float32)
    for c, k in root.kids.items():
        pi[c] = k.n
    return pi / pi.sum()


def self_play(net, sims=24):
    root, hist = Node(Game(), 1.0), []
    while not root.game.over:
        pi = search(root, net, sims)
        hist.append((root.game.planes(), pi, root.game.turn))
        c = int(np.random.choice(COLS, p=pi)) if len(hist) < 10 else int(pi.argmax())
        root = Node(root.kids[c].game, 1.0)
    return [(x, pi, float(root.game.winner * t)) for x, pi, t in hist]


if __name__ == "__main__":
    torch.set_num_threads(1)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), 1e-3, weight_decay=1e-4)
    bank = []
    for gen in range(10**6):
        bank = (bank + self_play(net))[-8000:]
        tot = 0.0
        for _ in range(12):
            x, pi, z = zip(*random.sample(bank, min(64, len(bank))))
            lg, v = net(torch.from_numpy(np.stack(x)))
            loss = F.mse_loss(v, torch.tensor(z)) - (torch.from_numpy(np.stack(pi)) * lg.log_softmax(-1)).sum(1).mean()
            opt.zero_grad(); loss.backward(); opt.step()
            tot += loss.item()
        if gen % 10 == 0:
            print("game", gen, "bank", len(bank), "loss %.3f" % (tot / 12), flush=True)
