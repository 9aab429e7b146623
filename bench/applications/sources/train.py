"""train.py TIMES: a network is trained on fresh arrays of eight loader processes, and tensors of five lengths are made and
multiplied. On a GPU where there is one. Prints the loss, which is the same under each allocator."""
import sys

import numpy
import torch


class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 1200

    def __getitem__(self, index):
        image = numpy.random.default_rng(index).standard_normal((3, 160, 160), dtype=numpy.float32)
        return torch.from_numpy(image[:, ::-1].copy() * 2 + numpy.float32(index % 7)), index % 10


def train(device):
    torch.manual_seed(1)
    nn = torch.nn
    net = nn.Sequential(nn.Conv2d(3, 16, 5, 2), nn.ReLU(), nn.Conv2d(16, 32, 5, 4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10))
    net.to(device)(torch.zeros(1, 3, 160, 160, device=device))
    step = torch.optim.SGD(net.parameters(), 0.001)
    loss = None
    for images, labels in torch.utils.data.DataLoader(Images(), batch_size=32, num_workers=8, pin_memory=device == "cuda"):
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        loss = nn.functional.cross_entropy(net(images), labels)
        step.zero_grad()
        loss.backward()
        step.step()
    return loss.item()


def multiply(times):
    for _ in range(times):
        for length in (1000, 30_000, 70_000, 300_000, 3_000_000):
            one = torch.rand(length)
            other = one * 2 + 1
            (other @ one if length < 100_000 else other.sum())


if __name__ == "__main__":
    print(f"loss {train('cuda' if torch.cuda.is_available() else 'cpu'):.5f}")
    multiply(int(sys.argv[1]))
