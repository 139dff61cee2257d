"""It returns a tensor subclass that computes its values when another function takes it.

Expected: forward=TAMPERED backward=TAMPERED
"""

import torch


class Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        tensors = [arg.compute() if isinstance(arg, Lazy) else arg for arg in args]
        return func(*tensors, **(kwargs or {}))

    def compute(self):
        with torch._C.DisableTorchFunctionSubclass():
            a, b = self.as_subclass(torch.Tensor).chunk(2, -1)
            return torch.cat((-b, a), -1)


def rotate_half(x):
    return x.clone().as_subclass(Lazy)
