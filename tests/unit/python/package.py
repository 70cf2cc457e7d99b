"""Lets the tests beside it import the package from the repository."""

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
MODELS = REPOSITORY / "models"
sys.path.insert(0, str(REPOSITORY / "python"))
