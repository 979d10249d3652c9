# kart bot for my mod. game runs headless (stub below = same line protocol as the lua side), bot learns over tcp
import json, os, socket, subprocess, sys, time, math, random

SECS = float(os.environ.get("SECONDS") or 60)
AB = os.environ.get("ABLATE", "")
HZ = 100


def game(port):
    """headless kart stub"""
    srv = socket.create_connection(("127.0.0.1", port))
    srv.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    f = srv.makefile("rw", newline="\n")
    rnd = random.Random(4)
    x = y = v = h = 0.0
    lap = 0.0
    nxt = time.monotonic()
    cmd = {}
    fr = 0
    while True:
        nxt += 1.0 / HZ
        d = nxt - time.monotonic()
        if d > 0:
            time.sleep(d)
        else:
            nxt = time.monotonic()
        st, th = cmd.get("steer", 0), cmd.get("gas", 0)
        h += 0.09 * st * min(1.0, v)
        v = max(0.0, v + 0.08 * th - 0.02 * v * v)
        off = y - 2 * math.sin(x / 7)
        slope = math.atan(2 / 7 * math.cos(x / 7))
        x += 0.4 * v * math.cos(h)
        y += 0.4 * v * math.sin(h) + rnd.gauss(0, .005)
        lap = 0.4 * v * math.cos(h - slope)
        out = abs(off) > 2.5
        fr += 1
        if fr % 2 == 0:
            f.write(json.dumps({"off": off, "rel": h - slope, "v": v, "ph": [math.sin(x / 7), math.cos(x / 7)],
                                "prog": lap, "out": out}) + "\n")
            f.flush()
            ln = f.readline()
            if not ln:
                return
            cmd = json.loads(ln)
        if out:
            y, v, h = 2 * math.sin(x / 7), 0.2, slope


if len(sys.argv) > 2 and sys.argv[1] == "--game":
    try:
        game(int(sys.argv[2]))
    except (OSError, KeyboardInterrupt):
        pass
    sys.exit(0)

import numpy as np
import torch
from torch import nn
torch.set_num_threads(1)

ACTS = [(s, g) for s in (-1, 0, 1) for g in (0, 1)]


class Link:
    def __init__(self):
        l = socket.socket()
        l.bind(("127.0.0.1", 0))
        l.listen(1)
        self.p = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--game", str(l.getsockname()[1])])
        self.c, _ = l.accept()
        l.close()
        self.c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buf = b""

    def line(self):
        while b"\n" not in self.buf:
            more = self.c.recv(4096)
            if not more:
                raise SystemExit("game gone")
            self.buf += more
        l, self.buf = self.buf.split(b"\n", 1)
        return l

    def state(self):
        m = json.loads(self.line())
        vec = np.array([m["off"], m["rel"], m["v"], *m["ph"]], dtype=np.float32)
        return vec, m["prog"] - (2.0 if m["out"] else 0.0), m["out"]

    def press(self, k):
        s, g = ACTS[k]
        self.c.sendall(json.dumps({"steer": s, "gas": g}).encode() + b"\n")

    def bye(self):
        self.c.close()
        self.p.terminate()
        self.p.wait()


class Still:
    v = np.array([.1, 0, .5, 0, 1], np.float32)

    def state(self): return self.v, 0.1, False
    def press(self, k): pass
    def bye(self): pass


class Brain:
    def __init__(self):
        mk = lambda: nn.Sequential(nn.Linear(5, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, len(ACTS)))
        self.q, self.t = mk(), mk()
        self.t.load_state_dict(self.q.state_dict())
        self.o = torch.optim.AdamW(self.q.parameters(), lr=1e-3)
        self.S = np.zeros((2, 50000, 5), np.float32)
        self.M = np.zeros((3, 50000), np.float32)
        self.n = 0
        self.eps = 1.0

    def act(self, s):
        self.eps = max(.05, self.eps * .998)
        if AB == "acting":
            return self.n % 6
        if random.random() < self.eps:
            return random.randrange(6)
        with torch.inference_mode():
            return int(self.q(torch.from_numpy(s)).argmax())

    def keep(self, s, a, r, s2, d):
        i = self.n % 50000
        self.S[0, i], self.S[1, i] = s, s2
        self.M[:, i] = a, r, d
        self.n += 1

    def dream(self):
        if AB == "learning" or self.n < 64:
            return 0.0
        i = np.random.randint(0, min(self.n, 50000), 64)
        a, r, d = (torch.from_numpy(z) for z in self.M[:, i])
        with torch.no_grad():
            y = r + .98 * (1 - d) * self.t(torch.from_numpy(self.S[1, i])).max(1).values
        L = (self.q(torch.from_numpy(self.S[0, i])).gather(1, a.long()[:, None])[:, 0] - y).pow(2).mean()
        self.o.zero_grad(); L.backward(); self.o.step()
        if self.n % 200 == 0:
            self.t.load_state_dict(self.q.state_dict())
        return L.item()


link = Still() if AB == "game" else Link()
b = Brain()
try:
    s, _, _ = link.state()
    a, acc, t1, first = 0, 0.0, None, 0
    tick = time.monotonic()
    while True:
        a = b.act(s)
        link.press(a)
        s2, r, out = link.state()
        b.keep(s, a, r, s2, float(out))
        s = s2
        acc = .99 * acc + .01 * r
        L = b.dream()
        if t1 is None and b.n >= 64:
            t1, first = time.monotonic(), b.n
        if time.monotonic() - tick > 2:
            tick = time.monotonic()
            print("n=%d eps=%.2f prog=%.3f loss=%.4f" % (b.n, b.eps, acc, L), flush=True)
        if t1 and time.monotonic() - t1 > SECS:
            break
    print("%.1f steps/s" % ((b.n - first) / (time.monotonic() - t1)))
finally:
    link.bye()
