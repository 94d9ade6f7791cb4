"""Low rank: weights and their updates approximated by matrices of low rank, beside LoRA of the same rank."""

from regard.lab.study import StudyEntry

__all__ = ["LOW_RANK"]

LOW_RANK = StudyEntry(
    name="low-rank",
    title="Low-rank approximations of weights and of their updates",
    question="Are the weights of a trained model of low rank, or only what fine-tuning changes?",
    function="regard.lab.low_rank.approximation:study_low_rank",
    reads="a run folder",
    lectures=("L21",),
    minutes=(0.35, None),
)
