#!/usr/bin/env python3
"""Paddle bot. The game runs as its own process and talks JSON lines; the bot trains while it plays."""
import asyncio
import collections
import json
import random
import subprocess
import sys

import numpy as np
import torch
import torch.nn as nn

GAME = r'''
import asyncio, json, random, sys

class Court:
    def __init__(self):
        self.serve()
    def serve(self):
        self.x, self.y, self.p = 0.5, 0.9, 0.5
        self.vx, self.vy = random.uniform(-.03, .03), -.03
    def advance(self, a):
        self.p = min(1, max(0, self.p + (a - 1) * .04))
        self.x += self.vx; self.y += self.vy
        if not 0 < self.x < 1: self.vx = -self.vx
        if self.y > 1: self.vy = -abs(self.vy)
        r, over = 0.0, False
        if self.y < 0:
            if abs(self.x - self.p) < .12:
                self.vy = abs(self.vy); self.vx += random.uniform(-.01, .01); r = 1.0
            else:
                r, over = -1.0, True; self.serve()
        return dict(obs=[self.x, self.y, self.vx * 20, self.vy * 20, self.p], r=r, over=over)

async def session(rd, wr, fps=60):
    court, loop = Court(), asyncio.get_running_loop()
    due = loop.time()
    while line := await rd.readline():
        msg = court.advance(json.loads(line)["a"])
        due = max(due + 1 / fps, loop.time())
        await asyncio.sleep(due - loop.time())
        wr.write(json.dumps(msg).encode() + b"\n")
        await wr.drain()

async def serve():
    srv = await asyncio.start_server(session, "127.0.0.1", 0)
    print(srv.sockets[0].getsockname()[1], flush=True)
    await srv.serve_forever()

asyncio.run(serve())
'''


class Bot:
    def __init__(self):
        self.q = nn.Sequential(nn.Linear(5, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 3))
        self.old = nn.Sequential(nn.Linear(5, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 3))
        self.old.load_state_dict(self.q.state_dict())
        self.opt = torch.optim.Adam(self.q.parameters(), lr=1e-3)
        self.mem = collections.deque(maxlen=20_000)
        self.n = 0

    def choose(self, s):
        if random.random() < max(0.05, 1 - self.n / 3000):
            return random.randrange(3)
        with torch.no_grad():
            return int(self.q(torch.tensor(s)).argmax())

    def study(self):
        s, a, r, s2, d = map(np.array, zip(*random.sample(self.mem, 64)))
        s, s2 = torch.from_numpy(s).float(), torch.from_numpy(s2).float()
        with torch.no_grad():
            y = torch.from_numpy(r).float() + 0.98 * self.old(s2).max(1)[0] * (1 - torch.from_numpy(d).float())
        loss = nn.functional.mse_loss(self.q(s)[torch.arange(64), torch.from_numpy(a)], y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.n += 1
        if self.n % 250 == 0:
            self.old.load_state_dict(self.q.state_dict())
        return loss.item()


async def play(port, rounds):
    rd, wr = await asyncio.open_connection("127.0.0.1", port)

    async def ask(a):
        wr.write(json.dumps({"a": a}).encode() + b"\n")
        await wr.drain()
        return json.loads(await rd.readline())

    bot, hits, loss = Bot(), 0, 0.0
    s = (await ask(1))["obs"]
    for i in range(rounds):
        a = bot.choose(s)
        m = await ask(a)
        bot.mem.append((s, a, m["r"], m["obs"], m["over"]))
        s = m["obs"]
        hits += m["r"] > 0
        if len(bot.mem) > 128:
            loss = bot.study()
        if i % 500 == 499:
            print(i + 1, "hits", hits, "loss", round(loss, 4), flush=True)
            hits = 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    game = subprocess.Popen([sys.executable, "-c", GAME], stdout=subprocess.PIPE, text=True)
    try:
        asyncio.run(play(int(game.stdout.readline()), 1_000_000))
    finally:
        game.kill()
