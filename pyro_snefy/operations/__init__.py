r"""What closed forms say of a network: moments, marginals, missing values, quantiles."""
