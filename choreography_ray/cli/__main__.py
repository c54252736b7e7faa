"""`python -m choreography_ray.cli`, for where the script `choreography` is not on the path."""

from __future__ import annotations

import sys

from choreography_ray.cli import main

sys.exit(main())
