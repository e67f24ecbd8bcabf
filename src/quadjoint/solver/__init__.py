"""The forward solve: what is solved, the one loop, its steps; nothing here knows of gradients."""
