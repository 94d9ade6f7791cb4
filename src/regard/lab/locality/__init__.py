"""Learned locality: whether a fully connected network finds the local filters of a convolution by itself."""

from regard.lab.study import StudyEntry

__all__ = ["LOCALITY"]

LOCALITY = StudyEntry(
    name="locality",
    title="Learned locality: convolutions from fully connected networks",
    question="Do fully connected networks learn local filters, and how much of a convolution's advantage is regained?",
    function="regard.lab.locality.filters:study_locality",
    reads="a folder of images, or cifar-10",
    runs_on_gpu=True,
    lectures=("L40",),
    minutes=(1.4, None),
    options={
        "minutes": "stop after so many minutes; without --epochs, as many epochs are planned as fit",
        "epochs": "train every network for so many epochs",
        "channels": "channels of the convolution, by which all networks are scaled",
        "results": "a folder for finished networks, from which an interrupted study continues",
        "settings": "a folder of --results: its best settings are taken, and no images are left out",
    },
)
