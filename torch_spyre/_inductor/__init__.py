"""The front-end compiler: `torch.compile` for Spyre tensors, on top of Inductor.

Imported at the first compile, not with the package: Inductor takes a second or two.
"""
