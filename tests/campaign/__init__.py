"""Two captures on two hosts, and a nemesis that takes parts of them away."""
