import lightning as L
import torch
from task import Rate, Task
from torch.utils.data import DataLoader, IterableDataset

torch.set_num_threads(1)


class Experience(IterableDataset):
    def __init__(self, net):
        self.net, self.env, self.rate = net, Task(cost=0.002), Rate()

    def __iter__(self):
        state, _ = self.env.reset()
        while True:
            with torch.no_grad():
                action = self.net(torch.as_tensor(state)).argmax().item()
            after, reward, done, _, _ = self.env.step(action)
            self.rate.tick()
            yield state, action, reward, after
            state = self.env.reset()[0] if done else after


class Agent(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))

    def training_step(self, batch, index):
        state, action, reward, after = batch
        q = self.net(state).gather(1, action[:, None])[:, 0]
        target = reward + 0.99 * self.net(after).max(1).values.detach()
        return torch.nn.functional.mse_loss(q, target.float())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


agent = Agent()
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
L.Trainer(max_epochs=1, accelerator="cpu", **quiet).fit(agent, DataLoader(Experience(agent.net), batch_size=32))
