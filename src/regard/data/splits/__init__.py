"""Training, validation and test splits.

`plan_split` decides the split of rows by the settings: by a hash of the source (`by_hash`), by group or within labels
(`by_group`), by time (`by_time`), or by the structure of molecules and sequences (`by_structure`). `split_text` splits
text by position (`by_position`). `find_near_duplicates` finds held-out rows that also occur among the training rows
(`leaks`).
"""

from regard.data.splits.by_hash import SplitPlan, SplitRule
from regard.data.splits.by_position import TextSplit, split_text
from regard.data.splits.leaks import Leaks, find_near_duplicates
from regard.data.splits.plan import plan_split

__all__ = ["Leaks", "SplitPlan", "SplitRule", "TextSplit", "find_near_duplicates", "plan_split", "split_text"]
