import asyncio
import multiprocessing
import struct

import numpy as np
import torch
from task import Rate, burn


async def serve(reader, writer):
    count = 0
    while data := await reader.readexactly(4):
        burn(0.003)
        count += 1
        writer.write(np.full(8, struct.unpack("i", data)[0] + count % 50, np.float32).tobytes())
        await writer.drain()


def simulator(port):
    async def main():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


async def train(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    net = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 3))
    optimizer, rate = torch.optim.Adam(net.parameters(), 1e-3), Rate()
    state = torch.zeros(8)
    while rate.more():
        dist = torch.distributions.Categorical(logits=net(state))
        action = dist.sample()
        writer.write(struct.pack("i", int(action)))
        await writer.drain()
        state = torch.tensor(np.frombuffer(await reader.readexactly(32), np.float32))
        loss = -dist.log_prob(action) * state.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    torch.set_num_threads(1)
    here, there = multiprocessing.Pipe()
    process = multiprocessing.Process(target=simulator, args=(there,), daemon=True)
    process.start()
    asyncio.run(train(here.recv()))
