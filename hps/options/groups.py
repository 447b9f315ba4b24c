"""All options of `hps train`, in the groups of its help.

Above it: `hps.train.options`, hps/cli/train_flags.py, page.py. Below it: data.py, life.py,
model.py, run.py.
"""

from hps.options.data import ColumnOptions, DataOptions, KeyOptions, ValidationOptions
from hps.options.life import LifeOptions
from hps.options.model import ModelOptions, OptimizerOptions
from hps.options.run import OutputOptions, RankOptions, RunOptions, SpeedOptions

GROUPS = {
    "data": (DataOptions, KeyOptions, ColumnOptions),
    "validation": (ValidationOptions,),
    "model": (ModelOptions,),
    "optimizers and randomness": (OptimizerOptions,),
    "life of rows": (LifeOptions,),
    "run": (RunOptions,),
    "what is told": (OutputOptions,),
    "speed": (SpeedOptions,),
    "ranks (under torchrun)": (RankOptions,),
}
