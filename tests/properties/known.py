"""Examples that are worth running each time: each was wrong once, or is easy to get wrong."""

from tests.properties.strategies import Call, activation, base, law, number, tensor

_NORMAL = base("Gaussian", number(0.0), number(1.0), event_dim=0)

# Atoms inside a mixture inside a mixture.
NESTED_ATOMS = law(
    activation("Cos"),
    base(
        "Mixture",
        tensor(0.0, 0.5),
        (base("Mixture", tensor(0.0, 0.0), (_NORMAL, base("PointMass", number(0.5)))), _NORMAL),
    ),
    tensor((1.0,), (0.5,)),
    tensor(0.3, -0.2),
    tensor((1.0, 0.5)),
)
# Without a bias, sines of tiny weights are linear: K = w_i w_j, from differences of ones.
TINY_SIN = law(activation("Sin"), _NORMAL, tensor((1e-9,), (2e-9,)), None, tensor((1.0, 0.5)))
TINY_SNAKE = law(
    activation("Snake", 1.0), _NORMAL, tensor((1e-9,), (2e-9,)), None, tensor((1.0, 0.5))
)
TINY_SIN_ON_A_BOX = law(
    activation("Sin"),
    base("UniformBox", tensor(-1.0), tensor(2.0)),
    tensor((1e-6,), (2e-6,)),
    None,
    tensor((1.0, 0.5)),
)
TINY_SNAKE_ON_A_MIXTURE = law(
    activation("Snake", 1.0),
    base(
        "Mixture",
        tensor(0.0, 0.5),
        (base("Interval", number(-1.0), number(2.0)), base("PointMass", number(3.0))),
    ),
    tensor((1e-6,), (2e-6,)),
    None,
    tensor((1.0, 0.5)),
)
TINY_SIN_ON_COUNTS = law(
    activation("Sin"),
    base("Poisson", number(2.0)),
    tensor((1e-8,), (2e-8,)),
    None,
    tensor((1.0, 0.5)),
)
TINY_SIN_ON_A_CUBE = law(
    activation("Sin"), base("UniformCube", 1), tensor((1e-6,), (2e-6,)), None, tensor((1.0, 0.5))
)
TINY_SNAKE_ON_CUBES = law(
    activation("Snake", 1.5),
    base("Product", (base("UniformCube", 1), base("UniformCube", 1))),
    tensor((1e-11, -2e-11)),
    None,
    tensor((1.0,)),
)
TINY_SNAKE_ON_A_PRODUCT = law(
    activation("Snake", 1.5),
    base("Product", (base("Geometric", number(0.3)), base("Interval", number(0.0), number(2.0)))),
    tensor((1e-9, -2e-9), (0.5e-9, 1e-9)),
    None,
    tensor((1.0, 0.5)),
)
# A part of a mixture whose weight underflows.
MASSLESS_PART = law(
    activation("Cos"),
    base("Mixture", tensor(0.0, -2000.0), (_NORMAL, base("PointMass", number(0.5)))),
    tensor((1.0,), (0.5,)),
    tensor(0.3, -0.2),
    tensor((1.0, 0.5)),
)
# A part of a mixture on which every neuron is zero.
DEAD_PART = law(
    activation("ReLU", 1),
    base("Mixture", tensor(0.0, 0.5), (_NORMAL, base("PointMass", number(-1.0)))),
    tensor((1.0,), (0.5,)),
    tensor(0.3, -0.2),
    tensor((1.0, 0.5)),
)
# z^8 with z = 1e5 overflows in float32.
STEEP_FLOAT32 = law(
    activation("ReLU", 8),
    base("Gaussian", number(0.0, "float32"), number(1.0, "float32"), event_dim=0),
    tensor((1.0,), dtype="float32"),
    tensor(1e5, dtype="float32"),
    tensor((1.0,), dtype="float32"),
)
# A gram of rank one that float32 rounds, so that it has eigenvalues below zero.
GRAM_OF_ROWS = Call(
    "SNEFY",
    (),
    (
        ("weight", tensor((0.001257,), (-0.001321,), (0.006404,), (0.001049,), dtype="float32")),
        (
            "bias",
            tensor(
                (0.1257, -0.1321, 0.6404, 0.1049), (-0.5357, 0.3616, 1.304, 0.9471), dtype="float32"
            ),
        ),
        (
            "gram",
            tensor(
                (0.015800489112734795, -0.016604969277977943, 0.08049827814102173, 0.01318593),
                (-0.016604969277977943, 0.01745041087269783, -0.08459684252738953, -0.01385729),
                (0.08049827814102173, -0.08459684252738953, 0.4101121425628662, 0.06717796),
                (0.01318593043833971, -0.013857290148735046, 0.06717795878648758, 0.01100401),
                dtype="float32",
            ),
        ),
        ("activation", activation("Cos")),
        ("base", base("UniformCube", 1)),
    ),
)
PLAIN = law(
    activation("Cos"),
    _NORMAL,
    tensor(((1.0,), (0.5,)), ((0.3,), (0.8,))),
    tensor(0.3, -0.2),
    tensor((1.0, 0.5)),
)
PLAIN_SCALAR = law(
    activation("Cos"), _NORMAL, tensor((1.0,), (0.5,)), tensor(0.3, -0.2), tensor((1.0, 0.5))
)
# A part of a mixture that is itself batched over its components.
MIXTURE_INSIDE = law(
    activation("ReLU", 2),
    base(
        "Mixture",
        tensor(0.0, 0.5),
        (
            base("Gaussian", tensor(0.0), tensor(1.0)),
            base(
                "GaussianMixture", tensor(0.0, 0.0), tensor((0.5,), (-1.0,)), tensor((1.0,), (2.0,))
            ),
        ),
    ),
    tensor((1.0,), (0.5,)),
    tensor(0.3, -0.2),
    tensor((1.0, 0.5)),
)
# No coordinate of a sphere has a marginal law in closed form.
ON_A_CIRCLE = law(
    activation("Cos"), base("UniformSphere", 2), tensor((0.1, -0.1)), None, tensor((1.0,))
)
# The square of a linear function overflows where the density of the base vanishes.
LINEAR = Call(
    "SNEFY",
    (),
    (
        ("weight", tensor((0.5,))),
        ("gram", tensor((1.0,))),
        ("activation", activation("Identity")),
        ("base", _NORMAL),
    ),
)
# The norm of two outputs of 1e300 overflows.
TWO_LINES = law(
    activation("Snake", 1.0),
    _NORMAL,
    tensor((1.0,), (0.5,)),
    None,
    tensor((1.0, 2.0), (0.5, -1.0)),
)
# Rates that no count in int64 reaches: e^45, alone and in a batch.
HUGE_RATE = law(
    activation("Exp", 1.0), base("PoissonFamily"), tensor((22.5,)), None, tensor((1.0,))
)
HUGE_RATES = law(
    activation("Exp", 1.0),
    base("PoissonFamily"),
    tensor(((22.5,),), ((0.1,),)),
    None,
    tensor((1.0,)),
)
# Equal points of a finite set add their masses, once.
EQUAL_POINTS = law(
    activation("Cos"),
    base("Discrete", tensor(-3.0, -3.0, 2.0), tensor(1.0, 1.4, 1.3)),
    tensor((0.5,)),
    None,
    tensor((1.0,)),
)
# The sine is zero at one of two points: all mass is on the other, and the variance is zero.
ALMOST_SURE = law(
    activation("Sin"),
    base("Bernoulli", tensor(0.5313836877409784, 0.25)),
    tensor((0.1257,)),
    None,
    tensor((1.0,)),
)
# Tails of Student's law: deficits 1 - φ of 4e-11.
TINY_SIN_ON_STUDENT = law(
    activation("Sin"),
    base("StudentT", number(3.589), number(0.0), number(0.001065), event_dim=0),
    tensor((0.006106,)),
    None,
    tensor((1.0,)),
)
# A readout for each row, in float32.
TINY_SIN_FLOAT32 = law(
    activation("Sin"),
    base("Interval", number(1.065, "float32"), number(2.0011, "float32")),
    tensor((1.257e-6,), dtype="float32"),
    None,
    tensor(((0.1257,),), ((-0.1321,),), dtype="float32"),
)
# An infinite covariance, along a weight with entries of both signs.
HEAVY_TAILS = law(
    activation("Cos"),
    base(
        "StudentT",
        number(0.5324),
        tensor(0.1257, -0.1321),
        scale_tril=tensor((0.1389, 0.0), (0.6404, 0.1689)),
    ),
    tensor((0.1257, -0.1321)),
    None,
    tensor((1.0,)),
)
