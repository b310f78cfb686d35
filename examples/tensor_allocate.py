"""Put a tensor on the card, look at how it lies there, compute with it, bring it back."""

import torch

x = torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.float16, device="spyre")
print(x)
print("device:", x.device)
print("layout:", x.device_tensor_layout())

y = x * 2 + 1
print("x * 2 + 1 =", y.cpu().tolist())

big = torch.empty(512, 256, dtype=torch.float16, device="spyre")
print("512 x 256:", big.device_tensor_layout())
print("bytes on the card:", torch.spyre.memory.memory_allocated())
