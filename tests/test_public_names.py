"""The public names of the package: a frozen surface, in which no name has two meanings.

A name that is added, removed or renamed here is a change for users: it belongs in CHANGELOG.md.
"""

import ast
from importlib import import_module
from pathlib import Path

import pytest
from tests import architecture

import regard

ROOT = Path(regard.__file__).parent

PUBLIC = {
    "regard": """
        Evaluation Plan Prediction RegardError Run Score align attention_maps check compare demo export_model
        few_shot finetune import_model load load_adapters load_pretrained merge plan rollout serve sweep train
    """,
    "regard.nn": """
        ALiBi Block ConditionalRandomField Dropout FeedForward GatedConvolution KVCache LayerNorm Learned
        LockedDropout Lookup MultiHeadAttention RMSNorm RecurrentStack RelativeBias RelativeKeys Rotary Similarity
        Sinusoidal StaticKVCache TokenDropout attend causal_mask contrastive_losses cross_entropy document_mask
        linear_cross_entropy make_similarity padding_mask prepare_for_inference rdrop_cross_entropy
    """,
    "regard.text": """
        Chat Message TextStreamer Tokenizer load_tokenizer train_tokenizer
    """,
    "regard.data": """
        BatchSampler Codec DataConfig ImageConfig LabelCodec NumberCodec PixelCodec Prepared TextCodec WindowSampler
        builtin_names find_builtin open_table
    """,
    "regard.models": """
        Convolutional ConvolutionalConfig Decoder DecoderState Encoder EncoderDecoderConfig EncoderOutput FAMILIES
        Family ModelConfig Preset Recurrent RecurrentConfig ResNet ResNetConfig StatefulDecoder StaticState
        Transformer TransformerConfig VisionTransformer VisionTransformerConfig build_model find_family find_preset
        has_size preset_names read_model_config
    """,
    "regard.generation": """
        BeamSearch Constraint Engine GenerationConfig Hypothesis NewTokens Request prepare_for_inference sample
    """,
    "regard.evaluation": """
        ComparedPair Counts Examples Interval METRICS Metric Score bootstrap_interval clopper_pearson compare_all
        count_right find_metric find_metric_of holm mean_interval on_pairs score_counts score_examples score_label
        score_over_seeds
    """,
    "regard.selection": """
        Certificate CertifiedScore Ladder Ledger Range Release ReleasedScores Siblings Space Thresholdout bound_released
        certify read_ledgers read_space
    """,
    "regard.baselines": """
        Baseline BaselinePredictions KneserNey fit_classifier fit_multi_label fit_number fit_pairs fit_pixels
        fit_tagger
    """,
    "regard.tasks": """
        Detection Prediction TASKS Task TaskSettings detect_task find_task make_task
    """,
    "regard.adapters": """
        LoRALinear LoraConfig QuantizedLinear add_lora load_lora lora_tensors merge_lora
    """,
    "regard.training": """
        DraftSettings FinetuneConfig Hardware Muon Outcome Progress ResolvedSettings TrainConfig Trainer
        WeightAverage choose_hardware draft find_hardware lr_multiplier make_optimizer read_tensors resolve
        write_tensors
    """,
    "regard.explanation": """
        AttentionMaps Attribution Highlights Report Summary SummaryTable model_attention_maps record_attention
        write_report
    """,
    "regard.interop": """
        EXPORTERS ExportableModel ExportedModel Exporter IMPORTERS ImportedAdapter ImportedModel
        Importer check_destination find_importer read_model write_export
    """,
    "regard.runs": """
        Evaluation GenerationOptions Run RunFolder attention_maps export_model import_model load load_adapters
        load_pretrained
    """,
    "regard.experiments": """
        Comparison FewShot Sweep
    """,
    "regard.serving": """
        serve
    """,
    "regard.lab": """
        STUDIES Study StudyEntry StudyTable run_study
    """,
}


@pytest.mark.parametrize("module", PUBLIC)
def test_the_public_names_of_a_module_are_these(module: str):
    assert sorted(import_module(module).__all__) == sorted(PUBLIC[module].split())


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_can_be_imported(module: str):
    for name in PUBLIC[module].split():
        assert getattr(import_module(module), name) is not None


def test_a_name_of_the_package_is_defined_in_the_package():
    for name in regard.__all__:
        assert getattr(regard, name).__module__.startswith("regard.")


def test_every_folder_states_its_purpose_and_its_public_names():
    folders = {path.parent for path in ROOT.rglob("*.py")}
    for folder in sorted(folders):
        init = folder / "__init__.py"
        assert init.is_file(), f"{folder.relative_to(ROOT)} has no __init__.py"
        assert ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))), f"{init} states no purpose"


def test_no_public_name_is_defined_in_two_modules():
    homes = {name: set(modules) for name, modules in architecture.public_names().items()}
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}
