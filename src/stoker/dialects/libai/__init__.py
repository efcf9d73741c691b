"""LiBai's trainer on Stoker: a lazy config, four hook points, iterations."""
