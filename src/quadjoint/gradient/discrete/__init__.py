"""The exact transpose of the forward solve."""
