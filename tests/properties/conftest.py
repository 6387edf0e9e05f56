"""How many examples are drawn: few and always the same by default, many and new by `make fuzz`."""

import os

from hypothesis import HealthCheck, Phase, settings

_COMMON = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much],
}
settings.register_profile("few", max_examples=20, derandomize=True, database=None, **_COMMON)
settings.register_profile(
    "fuzz",
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", "1000")),  # of each property
    phases=[Phase.reuse, Phase.generate, *([] if os.environ.get("FUZZ_RAW") else [Phase.shrink])],
    print_blob=True,
    **_COMMON,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "few"))
