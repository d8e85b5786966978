"""Side-by-side speed against peers: ratios inside one run, on this machine."""
