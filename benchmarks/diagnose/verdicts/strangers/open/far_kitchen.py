"""Actor-critic whose environments live in another process, reached by a TCP socket.
The process ("the kitchen") speaks JSON lines, and is not allowed to be asked too often."""
import asyncio
import json
import multiprocessing as mp
import os
import socket
import time

import numpy as np
import torch

torch.set_num_threads(1)
WITHOUT = os.environ.get("ABLATE", "").split(",")      # courtesy, ledger, learn
UNTIL = float(os.environ.get("SECONDS", 10 ** 9))
ORDERS = int(os.environ.get("ORDERS", 12000))
TABLES = 2


# ---------------------------------------------------------------- the other process
class Kitchen:
    def __init__(self):
        import gymnasium as gym
        self.pots = [gym.make("CartPole-v1") for _ in range(TABLES)]
        self.book = []

    def open(self):
        return [p.reset(seed=70 + i)[0].tolist() for i, p in enumerate(self.pots)]

    def cook(self, moves):
        plates = []
        for pot, m in zip(self.pots, moves):
            o, r, term, trunc, _ = pot.step(m)
            if term or trunc:
                o, _ = pot.reset()
            plates.append((o.tolist(), float(r), bool(term or trunc)))
        if "ledger" not in WITHOUT:
            self.write_up(plates)
        return plates

    def write_up(self, plates):
        """audit trail: a digest over the last few hundred servings"""
        self.book.append(plates)
        self.book = self.book[-150:]
        return hash(json.dumps(self.book))


async def wait_table(reader, writer, kitchen):
    while True:
        line = await reader.readline()
        if not line:
            break
        order = json.loads(line)
        if order["kind"] == "open":
            answer = kitchen.open()
        else:
            answer = kitchen.cook(order["moves"])
            if "courtesy" not in WITHOUT:
                await asyncio.sleep(0.003)          # be gentle with the simulator licence
        writer.write(json.dumps(answer).encode() + b"\n")
        await writer.drain()
    writer.close()
    asyncio.get_running_loop().stop()


def kitchen_main(pipe):
    async def serve():
        k = Kitchen()
        srv = await asyncio.start_server(lambda r, w: wait_table(r, w, k), "127.0.0.1", 0, limit=2 ** 20)
        pipe.send(srv.sockets[0].getsockname()[1])
        async with srv:
            await srv.serve_forever()
    try:
        asyncio.run(serve())
    except (RuntimeError, asyncio.CancelledError):
        pass


# ---------------------------------------------------------------- this process
class Waiter:
    def __init__(self, port):
        self.s = socket.create_connection(("127.0.0.1", port))
        self.s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.f = self.s.makefile("rwb")

    def __call__(self, **order):
        self.f.write(json.dumps(order).encode() + b"\n")
        self.f.flush()
        return json.loads(self.f.readline())

    def leave(self):
        self.f.close()
        self.s.close()


def discount(rs, ds, tail, g=0.98):
    out = np.zeros_like(rs)
    for t in range(len(rs) - 1, -1, -1):
        tail = rs[t] + g * tail * (1 - ds[t])
        out[t] = tail
    return out


def main():
    torch.manual_seed(7)
    np.random.seed(7)
    here, there = mp.Pipe()
    chef = mp.get_context("fork").Process(target=kitchen_main, args=(there,), daemon=True)
    chef.start()
    ask = Waiter(here.recv())
    trunk = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.SiLU(), torch.nn.Linear(64, 3))
    opt = torch.optim.AdamW(trunk.parameters(), lr=2e-3)
    obs = np.asarray(ask(kind="open"), np.float32)
    n, t0 = 0, time.time()
    while n < ORDERS and time.time() - t0 < UNTIL:
        O, A, R, D = [], [], [], []
        for _ in range(20):
            with torch.no_grad():
                acts = torch.distributions.Categorical(logits=trunk(torch.from_numpy(obs))[:, :2]).sample()
            plates = ask(kind="cook", moves=acts.tolist())
            O.append(obs), A.append(acts.numpy())
            obs = np.asarray([p[0] for p in plates], np.float32)
            R.append([p[1] for p in plates]), D.append([p[2] for p in plates])
            n += TABLES
        with torch.no_grad():
            tail = trunk(torch.from_numpy(obs))[:, 2].numpy()
        G = torch.from_numpy(discount(np.asarray(R, np.float32), np.asarray(D, np.float32), tail).ravel())
        if "learn" in WITHOUT:
            continue
        for _ in range(3):
            y = trunk(torch.from_numpy(np.concatenate(O)))
            dist = torch.distributions.Categorical(logits=y[:, :2])
            adv = G - y[:, 2]
            loss = -(dist.log_prob(torch.from_numpy(np.concatenate(A))) * adv.detach()).mean() + 0.3 * adv.pow(2).mean()
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
    span = time.time() - t0
    ask.leave()
    chef.join(2)
    if chef.is_alive():
        chef.terminate()
    print(f"served {n} plates; {n / span:.1f} steps/s")


if __name__ == "__main__":
    main()
