"""What the library needs to know of torch.autograd."""
