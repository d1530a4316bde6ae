from autoopt.api import apply as apply
from autoopt.api import optimize as optimize
from autoopt.loading.importing import UserBuild as UserBuild
from autoopt.records import Change as Change
from autoopt.records import Estimate as Estimate
from autoopt.records import Plan as Plan
from autoopt.records import Result as Result
from autoopt.records import Trial as Trial
from autoopt.setup import Setup as Setup
from autoopt.setup import Wrap as Wrap
from autoopt.strategy import Applies as Applies
from autoopt.strategy import Case as Case
from autoopt.strategy import Edit as Edit
from autoopt.strategy import Example as Example
from autoopt.strategy import Recipe as Recipe
from autoopt.strategy import Risk as Risk
from autoopt.strategy import Strategy as Strategy
from autoopt.workload import Target as Target
from autoopt.workload import Workload as Workload

__version__: str
__all__: list[str]
