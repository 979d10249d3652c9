import json
import os
import socket
import struct
import subprocess
import sys
import time
import zlib

import numpy as np

SECONDS = float(os.environ.get("SECONDS", 60))
ABLATE = os.environ.get("ABLATE", "")
flags = {k: k == ABLATE for k in ("other:messages", "environment", "acting", "learning")}
BINARY = os.environ.get("REMEDY") == "1" or flags["other:messages"]
SIDE = 72


def send(sock, payload):
    sock.sendall(struct.pack("!I", len(payload)) + payload)


def receive(stream):
    size, = struct.unpack("!I", stream.read(4))
    return stream.read(size)


class Arena:
    def __init__(self):
        self.rng = np.random.default_rng(0)
        self.new_round()

    def new_round(self):
        self.walls = (self.rng.random((SIDE, SIDE)) < 0.08).astype(np.uint8) * 120
        self.tank, self.foe, self.clock = np.array([10, 10]), np.array([60, 60]), 0

    def tick(self, key):
        move = np.array([(0, 0), (0, 1), (0, -1), (1, 0), (-1, 0)][key])
        there = np.clip(self.tank + move, 2, SIDE - 3)
        if self.walls[tuple(there)] == 0:
            self.tank = there
        self.foe = np.clip(self.foe + self.rng.integers(-1, 2, 2), 2, SIDE - 3)
        self.clock += 1
        frame = np.stack([self.walls, np.zeros_like(self.walls), np.zeros_like(self.walls)])
        for layer, (y, x) in ((1, self.tank), (2, self.foe)):
            frame[layer, y - 2:y + 3, x - 2:x + 3] = 255
        shade = np.hypot(*np.meshgrid(np.arange(SIDE) - self.tank[1], np.arange(SIDE) - self.tank[0]))
        frame[0] = np.where(shade < 40, frame[0], frame[0] // 2)
        reward = -float(np.abs(self.tank - self.foe).sum()) / SIDE
        return frame, reward, self.clock >= 300


def serve(port_file):
    listener = socket.create_server(("127.0.0.1", 0))
    with open(port_file + ".part", "w") as f:
        f.write(str(listener.getsockname()[1]))
    os.rename(port_file + ".part", port_file)
    conn, _ = listener.accept()
    conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream, arena = conn.makefile("rb"), Arena()
    still = arena.tick(0)
    try:
        while True:
            request = json.loads(receive(stream))
            frame, reward, over = still if flags["environment"] else arena.tick(request["key"])
            if over:
                arena.new_round()
            if BINARY:
                send(conn, struct.pack("!f?", reward, over) + frame.tobytes())
            else:
                send(conn, zlib.compress(json.dumps(
                    {"frame": frame.tolist(), "reward": reward, "over": over}).encode(), 1))
    except (struct.error, ConnectionError):
        pass


class Game:
    def __init__(self):
        path = f"/tmp/arena_{os.getpid()}.port"
        self.proc = subprocess.Popen([sys.executable, __file__, "--serve", path])
        while not os.path.exists(path):
            time.sleep(0.05)
        self.sock = socket.create_connection(("127.0.0.1", int(open(path).read())))
        os.remove(path)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream = self.sock.makefile("rb")

    def press(self, key):
        send(self.sock, json.dumps({"key": int(key)}).encode())
        data = receive(self.stream)
        if BINARY:
            reward, over = struct.unpack("!f?", data[:5])
            return np.frombuffer(data, np.uint8, offset=5).reshape(3, SIDE, SIDE), reward, over
        msg = json.loads(zlib.decompress(data))
        return np.array(msg["frame"], dtype=np.uint8), msg["reward"], msg["over"]

    def quit(self):
        self.sock.close()
        self.stream.close()
        self.proc.wait(5)


def train():
    import torch
    from torch import nn
    torch.set_num_threads(1)
    net = nn.Sequential(nn.Conv2d(3, 8, 8, 4), nn.ReLU(), nn.Conv2d(8, 16, 4, 2), nn.ReLU(), nn.Flatten(),
                        nn.Linear(16 * 7 * 7, 64), nn.ReLU(), nn.Linear(64, 5))
    opt = torch.optim.RMSprop(net.parameters(), lr=5e-4)
    game = Game()

    def choose(frame):
        with torch.no_grad():
            logits = net(torch.from_numpy(frame).float().div_(255)[None])[0]
        return torch.distributions.Categorical(logits=logits).sample().item()

    def improve(frames, keys, rewards):
        g, out = 0.0, []
        for r in reversed(rewards):
            g = r + 0.97 * g
            out.append(g)
        adv = torch.tensor(out[::-1])
        adv = (adv - adv.mean()) / (adv.std() + 1e-6)
        logits = net(torch.from_numpy(np.stack(frames)).float().div_(255))
        loss = nn.functional.cross_entropy(logits, torch.tensor(keys), reduction="none")
        loss = (loss * adv).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()

    if flags["acting"]:
        choose = lambda frame: 1
    if flags["learning"]:
        improve = lambda *batch: None
    frames, keys, rewards, n, mark = [], [], [], 0, None
    frame, _, _ = game.press(0)
    start = time.time()
    while True:
        t = time.time() - start
        if not mark and t > 1:
            mark = (t, n)
        if t > SECONDS:
            break
        key = choose(frame)
        nxt, reward, over = game.press(key)
        frames.append(frame), keys.append(key), rewards.append(reward)
        frame = nxt
        n += 1
        if len(keys) == 64:
            improve(frames, keys, rewards)
            frames, keys, rewards = [], [], []
    game.quit()
    print(json.dumps({"steps_per_second": (n - mark[1]) / (t - mark[0])}))


if __name__ == "__main__":
    serve(sys.argv[2]) if "--serve" in sys.argv else train()
