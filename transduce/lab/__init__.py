"""The laboratory: the paper's arguments as measurements; each function takes its settings and returns a frozen result.

import transduce

result = transduce.lab.complexity(transduce.lab.Complexity(window=8))
result.report().findings
"""

from __future__ import annotations

from transduce.lab.complexity import Complexity, ComplexityResult, complexity
from transduce.lab.decoding import Decoding, DecodingResult, decoding
from transduce.lab.exposure import Exposure, ExposureResult, exposure
from transduce.lab.length import Length, LengthResult, length
from transduce.lab.norms import Norms, NormsResult, norms
from transduce.lab.positions import Positions, PositionsResult, positions
from transduce.lab.report import Claim, LabReport, LabTable, show, write
from transduce.lab.scaling_factor import ScalingFactor, ScalingFactorResult, scaling_factor
from transduce.lab.speed import Speed, SpeedResult, speed
from transduce.lab.table3 import Table3, Table3Result, table3
from transduce.lab.teacher_forcing import TeacherForcing, TeacherForcingResult, teacher_forcing

__all__ = [
    "Claim",
    "Complexity",
    "ComplexityResult",
    "Decoding",
    "DecodingResult",
    "Exposure",
    "ExposureResult",
    "LabReport",
    "LabTable",
    "Length",
    "LengthResult",
    "Norms",
    "NormsResult",
    "Positions",
    "PositionsResult",
    "ScalingFactor",
    "ScalingFactorResult",
    "Speed",
    "SpeedResult",
    "Table3",
    "Table3Result",
    "TeacherForcing",
    "TeacherForcingResult",
    "complexity",
    "decoding",
    "exposure",
    "length",
    "norms",
    "positions",
    "scaling_factor",
    "show",
    "speed",
    "table3",
    "teacher_forcing",
    "write",
]
