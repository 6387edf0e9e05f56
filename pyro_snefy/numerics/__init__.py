r"""Numerical building blocks, which know nothing of activations, bases or distributions."""
