"""Learning a walk style from scores that a separate rating service hands out."""
import asyncio
import json
import os
import subprocess
import sys
import time

import numpy as np
import torch
from torch import nn

SECONDS = float(os.environ.get("SECONDS", 60))
DROP = {w: os.environ.get("ABLATE", "") == w for w in ("waiting", "environment", "learning", "acting")}
REMEDY = os.environ.get("REMEDY") == "1"
CLIPS, LENGTH = 8, 24


def rating_service(path):
    """Stands in for the annotators' web service: answers after its own turnaround."""
    async def handle(reader, writer):
        while line := await reader.readline():
            clip = np.array(json.loads(line)["clip"])
            await asyncio.sleep(0 if DROP["waiting"] else 0.02)
            score = float(-np.abs(np.diff(clip, axis=0)).mean() + clip[:, 0].mean())
            writer.write(json.dumps({"score": score}).encode() + b"\n")
            await writer.drain()
        writer.close()

    async def run():
        server = await asyncio.start_unix_server(handle, path)
        async with server:
            await server.serve_forever()

    asyncio.run(run())


class Walker:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.restart()

    def restart(self):
        self.joint, self.speed = self.rng.normal(0, 0.1, 6), np.zeros(6)
        return self.view()

    def view(self):
        return np.concatenate([self.joint, self.speed]).astype(np.float32)

    def apply(self, torque):
        for _ in range(4):
            acc = 3.0 * torque - 2.0 * self.joint - 0.5 * self.speed + 0.3 * np.sin(self.joint[::-1])
            self.speed = self.speed + 0.01 * acc
            self.joint = self.joint + 0.01 * self.speed
        return self.view()


class Rater:
    def __init__(self, path):
        self.path = path
        self.free = asyncio.Queue()

    async def connect(self, n):
        for _ in range(n):
            self.free.put_nowait(await asyncio.open_unix_connection(self.path))

    async def score(self, clip):
        reader, writer = await self.free.get()
        writer.write(json.dumps({"clip": np.round(clip[:, :6], 3).tolist()}).encode() + b"\n")
        answer = json.loads(await reader.readline())
        self.free.put_nowait((reader, writer))
        return answer["score"]


async def train(path):
    torch.set_num_threads(1)
    actor = nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 6))
    opt = torch.optim.Adam(actor.parameters(), lr=1e-3)
    walkers = [Walker(i) for i in range(CLIPS)]
    rater = Rater(path)
    await rater.connect(CLIPS)

    def torque(obs):
        with torch.no_grad():
            return (actor(torch.from_numpy(obs)) + 0.3 * torch.randn(6)).numpy()

    def record(w):
        obs, seen, done = w.restart(), [], []
        for _ in range(LENGTH):
            a = torque(obs)
            seen.append(obs)
            done.append(a)
            obs = w.apply(a)
        return np.stack(seen), np.stack(done)

    def learn(clips, scores):
        s = torch.tensor(scores)
        adv = ((s - s.mean()) / (s.std() + 1e-6)).repeat_interleave(LENGTH)
        obs = torch.from_numpy(np.concatenate([c[0] for c in clips]))
        act = torch.from_numpy(np.concatenate([c[1] for c in clips]))
        for _ in range(6):
            loss = (adv * ((actor(obs) - act) ** 2).sum(-1)).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()

    if DROP["environment"]:
        fixed = walkers[0].view()
        Walker.apply = lambda self, a: fixed
    if DROP["acting"]:
        limp = np.zeros(6, np.float32)
        torque = lambda obs: limp
    if DROP["learning"]:
        learn = lambda c, s: None
    steps, start, mark = 0, time.time(), None
    while True:
        t = time.time() - start
        if mark is None and t > 1:
            mark = (t, steps)
        if t > SECONDS:
            break
        clips = [record(w) for w in walkers]
        if REMEDY:
            scores = await asyncio.gather(*[rater.score(c[0]) for c in clips])
        else:
            scores = []
            for c in clips:
                scores.append(await rater.score(c[0]))
        learn(clips, list(scores))
        steps += CLIPS * LENGTH
    print(json.dumps({"steps_per_second": (steps - mark[1]) / (t - mark[0])}))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        rating_service(sys.argv[2])
    else:
        sock = f"/tmp/rating_{os.getpid()}.sock"
        service = subprocess.Popen([sys.executable, __file__, "--rate", sock])
        while not os.path.exists(sock):
            time.sleep(0.05)
        try:
            asyncio.run(train(sock))
        finally:
            service.terminate()
            os.remove(sock)
