"""Look inside a model: what it read, where each head looked, what it nearly wrote.

from transduce.inspection import inspect

seen = inspect(transduce.load(), "Cats like to sleep.", to="de")
"""

from __future__ import annotations

from transduce.inspection.inspect import inspect as inspect
from transduce.inspection.record import Inspection as Inspection
