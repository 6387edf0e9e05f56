r"""What closed forms say of a network: moments, marginals, noise, quantiles, distances."""
